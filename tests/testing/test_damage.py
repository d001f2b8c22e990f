"""The strategies draw every kind of split and damage."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize("count", [1, 2, len(BODY)])
def test_cut_may_have_any_number_of_pieces(count: int) -> None:
    """One read, or one for each byte."""
    assert find(splits(BODY), lambda pieces: len(pieces) == count, settings=SEARCH)


KINDS: dict[str, Callable[[bytes], bool]] = {
    "none": lambda data: data == BODY,
    "broken off": lambda data: 0 < len(data) < len(BODY) and BODY.startswith(data),
    "nothing left": lambda data: not data,
    "changed": lambda data: len(data) == len(BODY) and data != BODY,
}


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_of_every_kind(kind: str) -> None:
    find(damaged(BODY), KINDS[kind], settings=SEARCH)


def test_bodies_are_sometimes_the_one_given_and_sometimes_of_its_shape() -> None:
    """Random bytes alone would not reach most of a parser."""

    def replaced(body: bytes) -> bool:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            return False
        return isinstance(found, dict) and found.keys() == {"a", "d"} and found != json.loads(BODY)

    assert find(bodies(BODY), lambda body: body == BODY, settings=SEARCH) == BODY
    assert find(bodies(BODY), replaced, settings=SEARCH)


@QUICK
@given(header_lines([(b"x-own", b"1")]))
def test_header_lines_are_such_as_a_listener_gives(lines: list[tuple[bytes, bytes]]) -> None:
    assert lines[-1] == (b"x-own", b"1")
    for name, value in lines:
        assert name == name.lower()
        assert value == value.strip() and not set(value) & set(b"\r\n\0")
