"""Decoding a body at once and member by member gives the same fields."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.sglang.body_fields import PER_PROMPT, RESERVED, items, read_fields
from gateway.formats.sglang.request import ABSENT, BodyFields

SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(),
        "max_new_tokens": st.none() | st.integers(),
        "beam_width": st.none() | st.integers(),
        "stop": st.text(),
    },
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "rid": st.none() | st.text() | st.lists(st.text()),
        "stream": st.booleans(),
        "sampling_params": st.none() | SAMPLING | st.lists(SAMPLING),
        "text": st.text(),
        "input_ids": st.lists(st.integers()),
        "routed_dp_rank": st.none(),
        "other": st.integers(),
    },
)


@given(BODIES)
def test_decoding_member_by_member_gives_the_same_fields(body: dict[str, Any]) -> None:
    """An earlier ``stream`` of a wrong type, which a later one replaces, makes the parser read member by
    member.
    """
    body = {"stream": False} | body
    usual = json.dumps(body).encode()
    long_way = usual.replace(b"{", b'{"stream":"x",', 1)
    assert read_fields(long_way)[0] == read_fields(usual)[0]


def test_fields_that_are_read_cover_both_lists() -> None:
    """A key added to a list but not to the struct would never be found."""
    assert set(RESERVED) | set(PER_PROMPT) < set(BodyFields.__struct_fields__)
    assert read_fields(b"{}")[0].routed_dp_rank is ABSENT


@pytest.mark.parametrize(
    ("raw", "entries"),
    [(b"[]", []), (b'[1 , "a"]', [b"1", b'"a"']), (b"null", None), (b'"[1]"', None), (b"", None)],
)
def test_items_are_those_of_a_list(raw: bytes, entries: list[bytes] | None) -> None:
    found = items(msgspec.Raw(raw))
    assert (None if found is None else [bytes(entry) for entry in found]) == entries
