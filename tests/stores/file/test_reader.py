"""The changes that a reader of the file finds, also of what this process wrote itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.stores.base import Change, CordonsChanged, Gone, Put, Reset
from gateway.stores.file.document import InvalidDocument
from gateway.stores.file.reader import FileReader
from gateway.stores.file.shared_file import SharedFile
from gateway.stores.last_writer_wins.map import Versioned, undated
from gateway.stores.record import WorkerRecord
from tests.stores.contract import HELD, ONE, TWO


def write(path: Path, *urls: str) -> None:
    path.write_text(json.dumps({"workers": list(urls)}))


@pytest.fixture
def reader(path: Path) -> FileReader:
    """A reader that has read ONE."""
    write(path, ONE.url)
    reader = FileReader(SharedFile(path))
    assert reader.changes() == [Reset({ONE.url: WorkerRecord(ONE.url)})]
    return reader


@pytest.mark.parametrize(
    ("url", "record", "change"),
    [(TWO.url, TWO, Gone(TWO.url)), (ONE.url, None, Put(WorkerRecord(ONE.url)))],
    ids=["put", "deleted"],
)
def test_own_write_that_somebody_undid_unseen_is_a_change(
    url: str, record: WorkerRecord | None, change: Change, path: Path, reader: FileReader
) -> None:
    """The fleet has it already, and would keep it, as the file is the same as before. Also if the file was
    broken in between."""
    for broken in (False, True):
        reader.written(url, record)
        if broken:
            path.write_text("[")
            with pytest.raises(InvalidDocument):
                reader.changes()
            write(path, ONE.url)
        assert reader.changes() == [change]
        assert reader.changes() == []


def test_own_write_is_found_once(path: Path, reader: FileReader) -> None:
    write(path, TWO.url)
    reader.written(ONE.url, None)
    reader.written(TWO.url, WorkerRecord(TWO.url))
    assert reader.changes() == [Gone(ONE.url), Put(WorkerRecord(TWO.url))]
    assert reader.changes() == []


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
        assert reader.changes() == ([] if expected is None else [CordonsChanged({HELD: expected})])
