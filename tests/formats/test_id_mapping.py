"""Private ids are mapped to public ones, in complete documents and across pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.id_mapping import IdMapping
from tests.formats.support import pieces

SPELLINGS = {b'"aab"': b'"one"', b'"aac"': b'""', b'"b_': b'"a much longer one_'}
TEXTS = st.lists(st.sampled_from([b'"', b"a", b"b", b"c", b"_", b'"aab"', b'"b_', b"\n"])).map(b"".join)


@given(TEXTS, st.integers(0, 10**6), st.sampled_from([SPELLINGS, {b'"aab"': b'"one"'}]))
def test_pieces_are_mapped_like_a_complete_document(
    text: bytes, seed: int, spellings: dict[bytes, bytes]
) -> None:
    id_mapping = IdMapping(spellings)
    given_out = b"".join(id_mapping.feed(piece) for piece in pieces(text, seed)) + id_mapping.flush()
    assert given_out == IdMapping(spellings).map(text)


@given(TEXTS)
def test_nothing_but_an_id_is_mapped(text: bytes) -> None:
    if not any(spelling in text for spelling in SPELLINGS):
        assert IdMapping(SPELLINGS).map(text) == text
