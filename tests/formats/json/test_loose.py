"""JSON is read as Python does."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.json.loose import REPAIR_LIMIT, plain_json


@given(
    st.text(max_size=12),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-le"]),
)
def test_plain_json_of_any_encoding_means_the_same(text: str, encoding: str) -> None:
    body = json.dumps({"a": text}, ensure_ascii=False).encode(encoding)
    assert msgspec.json.decode(plain_json(body)) == json.loads(body)


@given(
    st.recursive(
        st.text(max_size=6) | st.floats() | st.sampled_from(["NaN", "-Infinity", '"NaN', "\\", "\\ud800"]),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=10,
    )
)
def test_plain_json_changes_only_what_is_not_standard(value: object) -> None:
    """Strings and finite numbers come through; NaN and infinities become numbers."""
    body = json.dumps(value).encode()
    assert msgspec.json.decode(plain_json(body)) == json.loads(
        body, parse_constant=lambda name: -1 if name == "-Infinity" else 1
    )


def test_unpaired_surrogates_are_replaced_and_pairs_kept() -> None:
    """Half of a pair has no UTF-8 form."""
    body = rb'{"a":"\ud800x\udc00 \ud83d\ude00 \uD83D\uDE00 \\ud800 \ud83d\u0041"}'
    found = msgspec.json.decode(plain_json(body))["a"]
    assert found == "\ufffdx\ufffd \U0001f600 \U0001f600 \\ud800 \ufffdA"


@pytest.mark.parametrize("body", [b"\xff", b'{"a":"\xc3"}', b"\xff\xfe\x00\xd8x"])
def test_plain_json_of_no_text_is_refused(body: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        plain_json(body)


@pytest.mark.parametrize(
    "unit", [b'"",', b"NaN,", b"N", b"[", b'"', b"\\", b"\\u", b"\\ud800", b'\\"', b"I", b'"\\ud800",']
)
def test_plain_json_of_a_hostile_body_is_linear(unit: bytes) -> None:
    """A cost that grew with the square of its length would run into the limit of a test."""
    body = b"[NaN," + unit * ((REPAIR_LIMIT - 5) // len(unit))
    assert len(plain_json(body)) == len(body)
