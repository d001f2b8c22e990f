"""The order of what was said."""

from __future__ import annotations

import json

from gateway.stores.versioned import Versioned, undated, updates_from_json

SAID = [
    undated(present=False),
    undated(present=True),
    Versioned(7, "", True),
    Versioned(7, "a", False),
    Versioned(7, "b", True),
    Versioned(1 << 53, "a", False),
]


def test_later_one_is_larger_and_so_is_its_text() -> None:
    """Said at once, the order is any, but there is one."""
    assert sorted(reversed(SAID)) == SAID
    texts = [said.text for said in SAID if said.dated]
    assert sorted(reversed(texts)) == texts and len(set(texts)) == 4
    assert all(text > "" for text in texts), "what is not dated is older than all"


def test_text_and_json_are_read_as_they_were_written() -> None:
    for said in SAID:
        assert Versioned.from_text(said.text, said.present) == said
    edits = {"http://w:1": {str(number): said for number, said in enumerate(SAID)}}
    assert updates_from_json(json.loads(json.dumps(edits))) == edits


def test_text_that_is_none_is_not_dated() -> None:
    for text in ("", "7 a", "x", "٣" * 20 + " a", "-1 a"):
        assert Versioned.from_text(text, present=True) == undated(present=True)
