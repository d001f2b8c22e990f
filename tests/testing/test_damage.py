"""The strategies draw every kind of split and damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gateway.testing.damage import bodies, damaged, header_lines, splits

BODY = b'{"a": [1, {"b": "c"}], "d": null}'
QUICK = settings(max_examples=100, deadline=None)
SEARCH = settings(max_examples=5000, phases=[Phase.generate], derandomize=True, database=None, deadline=None)


@QUICK
@given(st.binary(max_size=64).flatmap(lambda data: st.tuples(st.just(data), splits(data))))
def test_pieces_joined_are_the_data_and_none_is_empty(case: tuple[bytes, tuple[bytes, ...]]) -> None:
    data, pieces = case
    assert b"".join(pieces) == data
    assert all(pieces) or pieces == (b"",)


def _replaced(body: bytes) -> bool:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.keys() == {"a", "d"} and found != json.loads(BODY)


#: Random bytes alone would not reach most of a parser.
KINDS: dict[str, tuple[SearchStrategy[Any], Callable[[Any], bool]]] = {
    "one read": (splits(BODY), lambda pieces: len(pieces) == 1),
    "two reads": (splits(BODY), lambda pieces: len(pieces) == 2),
    "a read for each byte": (splits(BODY), lambda pieces: len(pieces) == len(BODY)),
    "no damage": (damaged(BODY), lambda data: data == BODY),
    "broken off": (damaged(BODY), lambda data: 0 < len(data) < len(BODY) and BODY.startswith(data)),
    "nothing left": (damaged(BODY), lambda data: not data),
    "changed": (damaged(BODY), lambda data: len(data) == len(BODY) and data != BODY),
    "the body": (bodies(BODY), lambda body: body == BODY),
    "a body of its shape": (bodies(BODY), _replaced),
}


@pytest.mark.parametrize("kind", KINDS)
def test_splits_and_damage_are_of_every_kind(kind: str) -> None:
    find(*KINDS[kind], settings=SEARCH)


@QUICK
@given(header_lines([(b"x-own", b"1")]))
def test_header_lines_are_such_as_a_listener_gives(lines: list[tuple[bytes, bytes]]) -> None:
    assert lines[-1] == (b"x-own", b"1")
    for name, value in lines:
        assert name == name.lower()
        assert value == value.strip() and not set(value) & set(b"\r\n\0")
