"""The changes that a reader of the file finds, also of what this process wrote itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.stores.base import CordonsChanged, Gone, Put, Reset
from gateway.stores.file.document import InvalidDocument
from gateway.stores.file.reader import FileReader
from gateway.stores.file.shared_file import SharedFile
from gateway.stores.last_writer_wins.map import Versioned, undated
from gateway.stores.record import WorkerRecord
from tests.stores.contract import ONE, TWO


def write(path: Path, *urls: str) -> None:
    path.write_text(json.dumps({"workers": list(urls)}))


@pytest.fixture
def reader(path: Path) -> FileReader:
    """A reader that has read ONE."""
    write(path, ONE.url)
    reader = FileReader(SharedFile(path))
    assert reader.changes() == [Reset({ONE.url: WorkerRecord(ONE.url)})]
    return reader


def test_own_record_that_somebody_removed_unseen_is_gone(reader: FileReader) -> None:
    """The fleet has the record already, and would keep it, as the file is the same as before."""
    reader.written(TWO.url, TWO)
    assert reader.changes() == [Gone(TWO.url)]
    assert reader.changes() == []


def test_own_removal_that_somebody_undid_unseen_is_a_put(reader: FileReader) -> None:
    reader.written(ONE.url, None)
    assert reader.changes() == [Put(WorkerRecord(ONE.url))]
    assert reader.changes() == []


def test_own_write_is_found_once(path: Path, reader: FileReader) -> None:
    write(path, TWO.url)
    reader.written(ONE.url, None)
    reader.written(TWO.url, WorkerRecord(TWO.url))
    assert reader.changes() == [Gone(ONE.url), Put(WorkerRecord(TWO.url))]
    assert reader.changes() == []


def test_own_write_that_was_undone_in_a_broken_file_is_gone_once_it_is_mended(
    path: Path, reader: FileReader
) -> None:
    path.write_text("[")
    reader.written(TWO.url, TWO)
    with pytest.raises(InvalidDocument):
        reader.changes()
    write(path, ONE.url)
    assert reader.changes() == [Gone(TWO.url)]


def test_cordons_that_a_person_adds_and_removes_are_undated(path: Path, reader: FileReader) -> None:
    """So are those of a gateway that knows no versions."""
    entry, present = Versioned(7, "a", True), {ONE.url: ["held"]}
    dated = {ONE.url: {"held": entry.text}}
    steps: list[tuple[dict[str, object], Versioned | None]] = [
        ({"marks": present}, undated(present=True)),
        ({"marks": present, "marks_said": dated}, entry),
        ({"marks_said": dated}, undated(present=False)),
        ({"marks": present}, undated(present=True)),
        ({}, undated(present=False)),
        ({"marks_lifted": dated}, entry._replace(present=False)),
        ({}, None),  # a tombstone that is forgotten is no change
    ]
    for members, expected in steps:
        path.write_text(json.dumps({"workers": [ONE.url], **members}))
        changes = [] if expected is None else [CordonsChanged({(ONE.url, "held"): expected})]
        assert reader.changes() == changes
