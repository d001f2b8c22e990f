"""Private ids are mapped to public ones, in complete documents and across pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.id_mapping import IdMapping
from tests.formats.sglang.support import cuts

SPELLINGS = {b'"aab"': b'"one"', b'"aac"': b'""', b'"b_': b'"a much longer one_'}
TEXTS = st.lists(st.sampled_from([b'"', b"a", b"b", b"c", b"_", b'"aab"', b'"b_', b"\n"])).map(b"".join)


@given(TEXTS, st.integers(0, 10**6))
def test_pieces_are_mapped_like_a_complete_document(text: bytes, seed: int) -> None:
    id_mapping = IdMapping(SPELLINGS)
    given_out = b"".join(id_mapping.feed(piece) for piece in cuts(text, seed)) + id_mapping.flush()
    assert given_out == IdMapping(SPELLINGS).map(text)


@given(TEXTS, st.integers(0, 10**6))
def test_pieces_are_mapped_like_a_complete_document_with_one_id(text: bytes, seed: int) -> None:
    id_mapping = IdMapping({b'"aab"': b'"one"'})
    assert b"".join(
        id_mapping.feed(piece) for piece in cuts(text, seed)
    ) + id_mapping.flush() == id_mapping.map(text)


@given(TEXTS)
def test_nothing_but_an_id_is_mapped(text: bytes) -> None:
    if not any(spelling in text for spelling in SPELLINGS):
        assert IdMapping(SPELLINGS).map(text) == text
