"""Merging one object over all the events that have it."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamMalformed
from gateway.formats.sglang.join.merged_object import MergedObject, append, unrepeat
from gateway.formats.sglang.join.rules import META
from gateway.formats.sglang.raw_members import Members, object_parts
from tests.formats.support import compact

VALUES = st.lists(st.integers() | st.text(max_size=4) | st.lists(st.none() | st.text(max_size=2), max_size=2))


def encode_values(draw: st.DrawFn, value: object) -> bytes:
    return json.dumps(value, indent=draw(st.none() | st.just(1))).encode()


@st.composite
def lists(draw: st.DrawFn) -> list[tuple[bytes, list[object]]]:
    values = draw(st.lists(VALUES, min_size=1, max_size=4))
    return [(encode_values(draw, value), list(value)) for value in values]


@given(lists())
def test_lists_appended_are_one_list(parts: list[tuple[bytes, list[object]]]) -> None:
    """Of any entries, spelled with or without space, some of them empty."""
    appended = bytearray(b"[")
    for text, _ in parts:
        append(appended, msgspec.Raw(text))
    assert json.loads(appended + b"]") == [entry for _, value in parts for entry in value]


@given(st.lists(st.text(max_size=5), max_size=4))
def test_strings_appended_are_one_string(parts: list[str]) -> None:
    appended = bytearray(b'"')
    for text in parts:
        append(appended, compact(text))
    assert json.loads(appended + b'"') == "".join(parts)


def test_null_appended_adds_nothing_and_a_value_of_another_kind_is_malformed() -> None:
    appended = bytearray(b"[1")
    append(appended, b"null")
    for odd in (b'"text"', b"5", b"{}", b"true"):
        with pytest.raises(UpstreamMalformed):
            append(appended, odd)
    assert appended == b"[1"


@given(VALUES, VALUES)
def test_list_sent_in_part_and_then_in_full_is_in_it_once(before: list[object], new: list[object]) -> None:
    everything = [*before, *new]
    assert json.loads(unrepeat(compact([*new, *everything]), compact(before)[:-1]) + b"]") == everything


@given(st.text(max_size=6), st.text(max_size=6))
def test_text_sent_in_part_and_then_in_full_is_in_it_once(before: str, new: str) -> None:
    assert json.loads(unrepeat(compact(new + before + new), compact(before)[:-1]) + b'"') == before + new


@pytest.mark.parametrize(("value", "appended"), [(b'"other"', b'"te'), (b"[7,8]", b"[1,2,3"), (b'""', b'"a')])
def test_value_that_repeats_nothing_is_unchanged(value: bytes, appended: bytes) -> None:
    assert unrepeat(value, appended) == value[:-1]


def members(text: str) -> Members:
    return msgspec.json.decode(text, type=Members)


def complete(*texts: str, parts: bool = True) -> dict[str, object]:
    level = MergedObject(META)
    for text in texts:
        level.add(members(text), parts=parts)
    found: dict[str, object] = json.loads(b"".join(object_parts(level.all_members())))
    return found


@pytest.mark.parametrize(
    ("name", "values", "joined"),
    [
        ("output_token_logprobs", ("[1]", "[2,3]", "[]"), [1, 2, 3]),
        ("input_token_logprobs", ("[1]", "[1]", "[1]"), [1]),
        ("hidden_states", ("[[1]]", "[[1],[2]]"), [[1], [2]]),
        ("completion_tokens", ("1", "5", "3"), 5),
        ("completion_tokens", ("9", "10", "null"), 10),
        ("prompt_tokens", ("1", "2"), 2),
        ("custom", ('"a"', '"b"'), "b"),
    ],
)
def test_member_is_joined_by_its_class(name: str, values: tuple[str, ...], joined: object) -> None:
    texts = [f'{{"{name}":{value}}}' for value in values]
    assert complete(*texts) == {name: joined}


@pytest.mark.parametrize(
    "name", ["output_top_logprobs", "input_top_logprobs", "reasoning_tokens", "dp_rank", "custom"]
)
def test_member_that_only_an_early_object_has_is_kept(name: str) -> None:
    value = [1] if "logprobs" in name else 1
    assert complete(json.dumps({name: value, "id": "a"}), '{"id":"a"}') == {"id": "a", name: value}


def test_complete_members_are_those_of_the_last_object() -> None:
    texts = ('{"output_token_logprobs":[1]}', '{"output_token_logprobs":[1,2]}')
    assert complete(*texts, parts=False) == {"output_token_logprobs": [1, 2]}
