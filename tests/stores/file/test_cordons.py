"""The cordons in a file of workers, which persons and other gateways write as well."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.stores.file import cordons
from gateway.stores.file.cordons import StoredCordons
from gateway.stores.versioned import Updates, Versioned, undated

URL = "http://w:1"
PRESENT, REMOVED = Versioned(7, "a", True), Versioned(8, "a", False)


def known(members: dict[str, Any]) -> Updates:
    return StoredCordons(members).known


def test_entries_are_read_as_they_were_written() -> None:
    """The list is for persons, and for gateways that know no versions."""
    stored = StoredCordons({})
    stored.update({URL: {"held": PRESENT, "paused": REMOVED}})
    assert stored.members["marks"] == {URL: ["held"]}
    assert known(dict(stored.members)) == stored.known == {URL: {"held": PRESENT, "paused": REMOVED}}


def test_list_that_was_edited_alone_is_the_latest_write() -> None:
    """It is undated, and the next write drops the versions from before."""
    stored = StoredCordons({})
    stored.update({URL: {"held": PRESENT, "paused": REMOVED}})
    members = {**stored.members, "marks": {URL: ["paused"]}}
    assert known(members) == {URL: {"held": undated(present=False), "paused": undated(present=True)}}
    assert StoredCordons(members).members == {"marks": {URL: ["paused"]}}


def test_oldest_tombstones_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cordons, "MOST_TOMBSTONES", 3)
    stored = StoredCordons({})
    for number in range(10):
        stored.update({f"http://{number}:1": {"held": Versioned(number + 1, "a", False), "kept": PRESENT}})
    entries = [entry for by_reason in stored.known.values() for entry in by_reason.values()]
    assert [entry.timestamp for entry in entries if not entry.present] == [8, 9, 10]
    assert len(stored.members["marks"]) == 10


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"marks": []}, "marks must be lists"),
        ({"marks": {URL: "held"}}, f"marks of {URL} must be lists"),
        ({"marks": {URL: [1]}}, f"marks of {URL} must be lists"),
        ({"marks_said": {URL: ["held"]}}, f"marks_said of {URL} must be objects"),
        ({"marks_lifted": {URL: {"held": 1}}}, f"marks_lifted of {URL} must be objects"),
        ({"marks_lifted": None}, "marks_lifted must be objects"),
    ],
)
def test_bad_member_is_named(members: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        StoredCordons(members)
