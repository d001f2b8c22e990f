"""Replacing one member of a JSON object leaves every other byte as it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.json.splice import insert_member, member_spans, remove_member, replace_member

SPACE = st.text(" \t\n\r", max_size=2).map(str.encode)
NAMES = st.sampled_from(["rid", "r", "rid2", "id", "text", "\u00e9", ""])
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    SCALARS | st.lists(st.integers(), max_size=4) | st.sampled_from(["{", '"', "\\", '\\"', "],", '"rid":1']),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@dataclass(frozen=True)
class Document:
    text: bytes
    members: list[tuple[str, int, int]]


def spelled(draw: st.DrawFn, name: str) -> bytes:
    escaped = draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
    parts = [f"\\u{ord(c):04x}" if on else json.dumps(c)[1:-1] for c, on in zip(name, escaped, strict=True)]
    return f'"{"".join(parts)}"'.encode()


@st.composite
def documents(draw: st.DrawFn) -> Document:
    text = bytearray(draw(SPACE) + b"{" + draw(SPACE))
    members: list[tuple[str, int, int]] = []
    pairs = draw(st.lists(st.tuples(NAMES, VALUES), max_size=5))
    for place, (name, value) in enumerate(pairs):
        text += (b"," + draw(SPACE)) if place else b""
        text += spelled(draw, name) + draw(SPACE) + b":" + draw(SPACE)
        raw = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.none() | st.just(1)))
        members.append((name, len(text), len(text) + len(raw.encode("utf-8", "surrogatepass"))))
        text += raw.encode("utf-8", "surrogatepass") + draw(SPACE)
    return Document(bytes(text + b"}" + draw(SPACE)), members)


@given(documents(), NAMES)
def test_member_spans_are_where_the_values_stand(document: Document, name: str) -> None:
    wanted = [(start, end) for key, start, end in document.members if key == name]
    assert member_spans(document.text, name) == wanted


@given(documents(), NAMES)
def test_replace_member_changes_the_values_and_nothing_else(document: Document, name: str) -> None:
    text, done = b"", 0
    for key, start, end in document.members:
        if key == name:
            text += document.text[done:start] + b'"new"'
            done = end
    assert replace_member(document.text, name, b'"new"') == text + document.text[done:]


@given(documents())
def test_insert_member_puts_one_in_front(document: Document) -> None:
    inserted = insert_member(document.text, "inserted", b'["x", 1]')
    comma = b"," if document.members else b""
    assert inserted.replace(b'"inserted":["x", 1]' + comma, b"", 1) == document.text
    pairs: list[tuple[str, Any]] = json.loads(inserted, object_pairs_hook=list)
    assert pairs[0] == ("inserted", ["x", 1])
    assert [key for key, _ in pairs[1:]] == [key for key, _, _ in document.members]


@given(st.binary() | st.text('{}[]",:\\rid 1', max_size=30).map(str.encode))
def test_splice_of_anything_raises_nothing(data: bytes) -> None:
    insert_member(data, "rid", b"1")
    replace_member(data, "rid", b"1")


def test_replace_member_of_a_long_body_looks_at_each_byte_once() -> None:
    """A long string of escapes, a deep nest and a list of lists, 10 MB in all, take a moment and no more."""
    text = b'"' + b'\\"' * 2_000_000 + b'"'
    deep = b"[" * 500_000 + b"]" * 500_000
    rows = b"[" + b",".join([b"[1,2,3]"] * 500_000) + b"]"
    body = b'{"text":%b,"x":%b,"input_ids":%b,"rid":"a"}' % (text, deep, rows)
    assert replace_member(body, "rid", b"1") == body[:-4] + b"1}"


@given(documents(), NAMES)
def test_remove_member_leaves_the_others_as_they_are(document: Document, name: str) -> None:
    remaining = remove_member(document.text, name)
    kept = [(key, document.text[start:end]) for key, start, end in document.members if key != name]
    spans = [span for key in dict(kept) for span in member_spans(remaining, key)]
    assert [remaining[start:end] for start, end in sorted(spans)] == [value for _, value in kept]
    assert set(json.loads(remaining.decode("utf-8", "surrogatepass"))) == set(dict(kept))


@pytest.mark.parametrize(
    ("body", "remaining"), [(b'{ "x" : 1 }', b"{}"), (b'{"x":1,"x":2}', b"{}"), (b"[1]", b"[1]")]
)
def test_remove_member_leaves_an_object_of_nothing_empty(body: bytes, remaining: bytes) -> None:
    assert remove_member(body, "x") == remaining
