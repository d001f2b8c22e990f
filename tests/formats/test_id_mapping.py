"""Private ids are mapped to public ones, in complete documents and across pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.contract import Ids
from gateway.formats.id_mapping import IdMapping
from gateway.formats.sglang.ids import id_mapping_for
from tests.formats.sglang.support import parsed, same
from tests.formats.support import HEX, PRIVATE, pieces

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


def test_id_inside_another_word_is_none() -> None:
    id_mapping = id_mapping_for(parsed(b'{"text":"a"}'), PRIVATE)
    assert id_mapping is not None
    for text in (HEX, f'"{HEX}1"', f'\\"{HEX}\\"', f'"x{HEX}"'):
        assert id_mapping.map(text.encode()) == text.encode()


def test_no_mapping_where_the_engine_has_the_clients_id_or_makes_its_own() -> None:
    assert id_mapping_for(parsed(b'{"text":"a","rid":"job-1"}'), same("job-1")) is None
    assert id_mapping_for(parsed(b'{"text":["a"]}'), same(HEX)) is None
    assert id_mapping_for(parsed(b'{"text":"a","sampling_params":{"n":2}}'), PRIVATE) is None


def test_many_ids_are_mapped_by_one_search() -> None:
    count = 300
    names = tuple(f"job-{index}" for index in range(count))
    ids = Ids(names, tuple(f"{HEX}{index:08x}" for index in range(count)))
    id_mapping = id_mapping_for(parsed({"input_ids": [[1]] * count, "rid": list(names)}), ids)
    assert id_mapping is not None
    text = ",".join(f'"{name}"' for name in ids.dispatch).encode()
    assert id_mapping.map(text) == ",".join(f'"{name}"' for name in names).encode()
