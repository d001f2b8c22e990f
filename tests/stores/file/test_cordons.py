"""The cordons in a file of workers, which persons and other gateways write as well."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.stores.file import cordons
from gateway.stores.file.cordons import members_of, read_cordons
from gateway.stores.last_writer_wins.map import Versioned, undated

URL = "http://w:1"
HELD, PAUSED = (URL, "held"), (URL, "paused")
PRESENT, REMOVED = Versioned(7, "a", True), Versioned(8, "a", False)
#: As a gateway wrote it.
MEMBERS = {
    "marks": {URL: ["held"]},
    "marks_said": {URL: {"held": PRESENT.text}},
    "marks_lifted": {URL: {"paused": REMOVED.text}},
}


def test_entries_are_read_as_they_were_written() -> None:
    """The list is for persons, and for gateways that know no versions."""
    entries = {HELD: PRESENT, PAUSED: REMOVED}
    assert members_of(entries) == MEMBERS and read_cordons(MEMBERS).snapshot() == entries


def test_list_that_was_edited_alone_is_the_latest_write() -> None:
    """It is undated, and the next write drops the versions from before."""
    known = read_cordons({**MEMBERS, "marks": {URL: ["paused"]}}).snapshot()
    assert known == {HELD: undated(present=False), PAUSED: undated(present=True)}
    assert members_of(known) == {"marks": {URL: ["paused"]}}


def test_oldest_tombstones_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they are in the file."""
    monkeypatch.setattr(cordons, "MOST_TOMBSTONES", 3)
    removed = {
        (f"http://{(number * 7) % 10}:1", "held"): Versioned(number + 1, "a", False) for number in range(10)
    }
    stored = read_cordons(members_of({**removed, HELD: PRESENT})).snapshot()
    assert {entry.timestamp for entry in stored.values() if not entry.present} == {8, 9, 10}
    assert stored[HELD] == PRESENT


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"marks": []}, "marks must be lists"),
        ({"marks": {URL: "held"}}, f"marks of {URL} must be lists"),
        ({"marks": {URL: 1}}, f"marks of {URL} must be lists"),
        ({"marks": {URL: [[]]}}, f"marks of {URL} must be lists"),
        ({"marks_said": {URL: ["held"]}}, f"marks_said of {URL} must be objects"),
        ({"marks_lifted": {URL: {"held": 1}}}, f"marks_lifted of {URL} must be objects"),
        ({"marks_lifted": None}, "marks_lifted must be objects"),
    ],
)
def test_bad_member_is_named(members: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_cordons(members)
