"""The marks in a file of workers, and whoever else writes them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.stores.file import cordons
from gateway.stores.file.cordons import StoredCordons
from gateway.stores.versioned import Updates, Versioned, undated

URL = "http://w:1"
THERE, LIFTED = Versioned(7, "a", True), Versioned(8, "a", False)


def known(members: dict[str, Any]) -> Updates:
    return StoredCordons(members).known


def test_members_are_read_as_they_were_written() -> None:
    """The list is what a person, and a gateway before there was an order, understands."""
    marks = StoredCordons({})
    marks.update({URL: {"held": THERE, "paused": LIFTED}})
    assert marks.members["marks"] == {URL: ["held"]}
    assert known(dict(marks.members)) == marks.known == {URL: {"held": THERE, "paused": LIFTED}}


def test_list_that_somebody_wrote_by_hand_is_not_dated() -> None:
    marks = StoredCordons({"marks": {URL: ["held"]}})
    assert marks.known == {URL: {"held": undated(present=True)}}
    assert marks.members == {"marks": {URL: ["held"]}}
    marks.update({URL: {"held": LIFTED}})
    assert marks.known == {URL: {"held": LIFTED}}


def test_whoever_changed_the_list_only_changed_it_last() -> None:
    """It is not dated, and the next who writes leaves no trace of what was before."""
    marks = StoredCordons({})
    marks.update({URL: {"held": THERE, "paused": LIFTED}})
    members = {**marks.members, "marks": {URL: ["paused"]}}
    assert known(members) == {URL: {"held": undated(present=False), "paused": undated(present=True)}}
    assert StoredCordons(members).members == {"marks": {URL: ["paused"]}}


def test_earlier_saying_changes_nothing() -> None:
    marks = StoredCordons({})
    marks.update({URL: {"held": LIFTED}})
    marks.update({URL: {"held": THERE}})
    assert marks.known == {URL: {"held": LIFTED}}


def test_lifted_marks_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cordons, "MOST_LIFTED", 3)
    marks = StoredCordons({})
    for number in range(10):
        marks.update({f"http://{number}:1": {"held": Versioned(number + 1, "a", False), "kept": THERE}})
    lifted = [said.timestamp for words in marks.known.values() for said in words.values() if not said.present]
    assert lifted == [8, 9, 10] and len(marks.members["marks"]) == 10


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
def test_what_is_no_marks_says_where(members: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        StoredCordons(members)
