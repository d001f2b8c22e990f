"""The order of the entries of a last-writer-wins map."""

from __future__ import annotations

import json

from gateway.stores.versioned import Versioned, undated, updates_from_json

ENTRIES = [
    undated(present=False),
    undated(present=True),
    Versioned(7, "", True),
    Versioned(7, "a", False),
    Versioned(7, "b", True),
    Versioned(1 << 53, "a", False),
]


def test_later_entry_is_larger_and_so_is_its_text() -> None:
    """Entries of one moment have an arbitrary order, but they have one."""
    assert sorted(reversed(ENTRIES)) == ENTRIES
    texts = [entry.text for entry in ENTRIES if entry.dated]
    assert sorted(reversed(texts)) == texts and len(set(texts)) == 4
    assert all(text > "" for text in texts), "undated is older than all"


def test_text_and_json_are_read_as_they_were_written() -> None:
    for entry in ENTRIES:
        assert Versioned.from_text(entry.text, entry.present) == entry
    updates = {"http://w:1": {str(number): entry for number, entry in enumerate(ENTRIES)}}
    assert updates_from_json(json.loads(json.dumps(updates))) == updates


def test_any_other_text_is_undated() -> None:
    for text in ("", "7 a", "x", "٣" * 20 + " a", "-1 a"):
        assert Versioned.from_text(text, present=True) == undated(present=True)
