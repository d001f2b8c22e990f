"""Cutting a long list of ids out of a body does not change the meaning of the rest."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.json.ids import STAND_IN, cut_ids

MANY = json.dumps(list(range(400))).encode()
NAME = b'"input_ids"'


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", "\t:\r\n")])
def test_long_list_is_counted_and_replaced(separators: tuple[str, str]) -> None:
    ids = list(range(100_000, 101_000))
    body = json.dumps({"text": None, "input_ids": ids, "rid": "a"}, separators=separators).encode()

    cut = cut_ids(body, NAME)

    assert cut is not None
    assert cut.ids == len(ids)
    assert json.loads(body[slice(*cut.span)]) == ids
    assert json.loads(cut.rest) == {"text": None, "input_ids": [0.0], "rid": "a"}


@pytest.mark.parametrize(
    "value", [b"[]", b"[[1,2],[3]]", b"[1,-2]", b'["a]","b"]', b"[1.5,2]", b"[1,null]", b"7", b"[1,2"]
)
def test_a_list_of_anything_else_is_left_alone(value: bytes) -> None:
    assert cut_ids(b'{"input_ids":%b,"text":"%b"}' % (value, b"x" * 1024), NAME) is None


def test_a_short_body_is_left_alone() -> None:
    assert cut_ids(b'{"input_ids":[1,2,3]}', NAME) is None


@pytest.mark.parametrize(
    "before",
    [b'{"a\\"input_ids":', b'{"a":"\\"input_ids": [1,2]","b":', b'{"xinput_ids":', b'{"a":"input_ids","b":'],
)
def test_name_inside_a_string_is_ignored(before: bytes) -> None:
    assert cut_ids(before + MANY + b"}", NAME) is None


VALUES = st.recursive(
    st.sampled_from(
        ["input_ids", "a]", '"input_ids":[1,2]', ",", "\\", "{", None, 1, [1, 2], list(range(300))]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["input_ids", "b", 'c"input_ids', ""]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["input_ids", "b", 'c"input_ids', "rid"]), VALUES, max_size=4))
def test_only_a_value_is_cut_out(members: dict[str, object]) -> None:
    body = json.dumps({**members, "pad": "x" * 1024}).encode()

    cut = cut_ids(body, NAME)

    if cut is not None:
        start, end = cut.span
        assert cut.rest == body[:start] + STAND_IN + body[end:]
        ids = json.loads(body[start:end])
        assert len(ids) == cut.ids
        # Putting the list back in for its stand-in gives what the body says.
        assert _put_back(json.loads(cut.rest), ids) == json.loads(body)


def _put_back(value: object, ids: object) -> object:
    if value == [0.0] and isinstance(value, list) and isinstance(value[0], float):
        return ids
    if isinstance(value, list):
        return [_put_back(each, ids) for each in value]
    if isinstance(value, dict):
        return {name: _put_back(each, ids) for name, each in value.items()}
    return value
