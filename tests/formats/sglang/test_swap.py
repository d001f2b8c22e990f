"""Private ids become public ones, in whole documents and across pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.base import Ids
from gateway.formats.sglang.swap import Swap, swap_for
from tests.formats.sglang.support import cuts, parsed, same
from tests.formats.support import HEX, PRIVATE

SPELLINGS = {b'"aab"': b'"one"', b'"aac"': b'""', b'"b_': b'"a much longer one_'}
TEXTS = st.lists(st.sampled_from([b'"', b"a", b"b", b"c", b"_", b'"aab"', b'"b_', b"\n"])).map(b"".join)


@given(TEXTS, st.integers(0, 10**6))
def test_pieces_are_swapped_like_the_whole(text: bytes, seed: int) -> None:
    swap = Swap(SPELLINGS)
    given_out = b"".join(swap.piece(piece) for piece in cuts(text, seed)) + swap.rest()
    assert given_out == Swap(SPELLINGS).whole(text)


@given(TEXTS, st.integers(0, 10**6))
def test_pieces_are_swapped_like_the_whole_where_there_is_one_id(text: bytes, seed: int) -> None:
    swap = Swap({b'"aab"': b'"one"'})
    assert b"".join(swap.piece(piece) for piece in cuts(text, seed)) + swap.rest() == swap.whole(text)


@given(TEXTS)
def test_nothing_but_an_id_is_swapped(text: bytes) -> None:
    if not any(spelling in text for spelling in SPELLINGS):
        assert Swap(SPELLINGS).whole(text) == text


def test_id_inside_another_word_is_none() -> None:
    swap = swap_for(parsed(b'{"text":"a"}'), PRIVATE)
    assert swap is not None
    for text in (HEX, f'"{HEX}1"', f'\\"{HEX}\\"', f'"x{HEX}"'):
        assert swap.whole(text.encode()) == text.encode()


def test_no_swap_where_the_engine_has_the_clients_id() -> None:
    assert swap_for(parsed(b'{"text":"a","rid":"job-1"}'), same("job-1")) is None
    assert swap_for(parsed(b'{"text":["a"]}'), same(HEX)) is None


def test_no_swap_for_parallel_samples() -> None:
    assert swap_for(parsed(b'{"text":"a","sampling_params":{"n":2}}'), PRIVATE) is None


def test_many_ids_are_swapped_by_one_search() -> None:
    count = 300
    names = tuple(f"job-{index}" for index in range(count))
    ids = Ids(names, tuple(f"{HEX}{index:08x}" for index in range(count)))
    swap = swap_for(parsed({"input_ids": [[1]] * count, "rid": list(names)}), ids)
    assert swap is not None
    text = ",".join(f'"{name}"' for name in ids.dispatch).encode()
    assert swap.whole(text) == ",".join(f'"{name}"' for name in names).encode()
