"""A member of an object of any size is blanked as it passes, and not a byte besides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.json.blanked import MemberBlanker
from tests.formats.support import pieces

KEY = "routing_data"


def blanked(document: bytes, seed: int | None = 0) -> tuple[bytes, list[bytes]]:
    """The document without the member, and the values of it."""
    values: list[bytes] = []
    blanker = MemberBlanker(KEY, values.append)
    out = b"".join(map(blanker.feed, pieces(document, seed)))
    return out + blanker.feed(b"", final=True), values


@pytest.mark.parametrize(
    ("document", "remaining"),
    [
        (b'{"routing_data":{"a":1},"x" : 1.50}', b'{"x" : 1.50}'),
        (b'{"x":1,"routing_data":null}', b'{"x":1}'),
        (b' { "routing_data" : {"a":["}",{}]} } ', b" {} "),
        (
            b'{"x":[{"routing_data":{}}],"routing_data":{"b":"\\\\"},"y":"\\","}',
            b'{"x":[{"routing_data":{}}],"y":"\\","}',
        ),
        (b'{"routing_data":{},"routing_data":{"a":2},"x":1}', b'{"x":1}'),
        (rb'{"x":"\"routing_data\":{}","routing_data2":{}}',) * 2,
        (b'{"routing_data":5}', b'{"routing_data":5}'),
        (b'[{"routing_data":{}}]', b'[{"routing_data":{}}]'),
        (b'{"x":1}{"routing_data":{}}', b'{"x":1}{"routing_data":{}}'),
        (b"{}", b"{}"),
        (b"", b""),
    ],
)
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_only_a_top_level_member_that_is_an_object_is_blanked(
    document: bytes, remaining: bytes, seed: int | None
) -> None:
    out, _ = blanked(document, seed)
    assert len(out) == len(document) and out.replace(b" ", b"") == remaining.replace(b" ", b"")
    assert out == document or document != remaining


NAMES = st.sampled_from([KEY, "a", "b\\", 'c"', ""])
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(["\\", '"', "{", "]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
ROUTING = st.none() | st.dictionaries(NAMES, VALUES, max_size=3)


@given(st.dictionaries(NAMES, VALUES, max_size=5), ROUTING, st.sampled_from([None, 1, 4]), st.integers(0, 99))
def test_rest_of_any_object_is_the_same_however_it_is_cut(
    found: dict[str, Any], value: Any, indent: int | None, seed: int
) -> None:
    given = {KEY: value, **found} if seed % 2 else {**found, KEY: value}
    document = json.dumps(given, indent=indent).encode()
    out, values = blanked(document, seed)
    assert len(out) == len(document)
    expected = json.loads(document)
    last = expected.pop(KEY)
    if last is None or isinstance(last, dict):
        assert (json.loads(out), [json.loads(each) for each in values]) == (expected, [last])
    else:
        assert (out, values) == (document, [])
    assert blanked(document, None) == (out, values)


def test_large_value_is_blanked_and_not_kept() -> None:
    value = json.dumps({"x": "y" * 200_000}).encode()
    out, (noted,) = blanked(b'{"a":[1],"routing_data":%b,"b":2}' % value)
    assert json.loads(out) == {"a": [1], "b": 2} and len(noted) < 100_000
