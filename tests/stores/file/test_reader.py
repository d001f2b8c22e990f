"""What a reader of a file of workers is told that has written to it as well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.stores.base import CordonsChanged, Gone, Put, Reset
from gateway.stores.file.document import InvalidDocument
from gateway.stores.file.reader import FileReader
from gateway.stores.file.shared_file import SharedFile
from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Versioned, undated
from tests.stores.contract import ONE, TWO


def write(path: Path, *urls: str) -> None:
    path.write_text(json.dumps({"workers": list(urls)}))


@pytest.fixture
def look(path: Path) -> FileReader:
    """One that was told of ONE."""
    write(path, ONE.url)
    found = FileReader(SharedFile(path))
    assert found.changes() == [Reset({ONE.url: WorkerRecord(ONE.url)})]
    return found


def test_own_record_that_somebody_took_away_unseen_is_told_as_gone(look: FileReader) -> None:
    """The fleet has it already and would keep it, though the file is as it was."""
    look.written(TWO.url, TWO)
    assert look.changes() == [Gone(TWO.url)]
    assert look.changes() == []


def test_own_removal_that_somebody_undid_unseen_is_told(look: FileReader) -> None:
    look.written(ONE.url, None)
    assert look.changes() == [Put(WorkerRecord(ONE.url))]
    assert look.changes() == []


def test_own_write_that_stands_is_told_once(path: Path, look: FileReader) -> None:
    write(path, TWO.url)
    look.written(ONE.url, None)
    look.written(TWO.url, WorkerRecord(TWO.url))
    assert look.changes() == [Gone(ONE.url), Put(WorkerRecord(TWO.url))]
    assert look.changes() == []


def test_what_was_undone_while_the_file_was_broken_is_told_once_it_is_mended(
    path: Path, look: FileReader
) -> None:
    path.write_text("[")
    look.written(TWO.url, TWO)
    with pytest.raises(InvalidDocument):
        look.changes()
    write(path, ONE.url)
    assert look.changes() == [Gone(TWO.url)]


def test_marks_that_a_person_sets_and_takes_away_are_told_without_a_date(
    path: Path, look: FileReader
) -> None:
    """As are those of a gateway that knows no order."""

    def marked(**marks: object) -> None:
        path.write_text(json.dumps({"workers": [ONE.url], **marks}))

    said, there = Versioned(7, "a", True), {ONE.url: ["held"]}
    marked(marks=there)
    assert look.changes() == [CordonsChanged(ONE.url, {"held": undated(present=True)})]
    marked(marks=there, marks_said={ONE.url: {"held": said.text}})
    assert look.changes() == [CordonsChanged(ONE.url, {"held": said})]
    marked(marks_said={ONE.url: {"held": said.text}})
    assert look.changes() == [CordonsChanged(ONE.url, {"held": undated(present=False)})]
    marked(marks=there)
    assert look.changes() == [CordonsChanged(ONE.url, {"held": undated(present=True)})]
    marked()
    assert look.changes() == [CordonsChanged(ONE.url, {"held": undated(present=False)})]
    marked(marks_lifted={ONE.url: {"held": said.text}})
    assert look.changes() == [CordonsChanged(ONE.url, {"held": said._replace(present=False)})]
    marked()
    assert look.changes() == [], "what is remembered no more"
