"""A body and a document are read alike whether each member has its usual type or not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.contract import ReplyFacts
from gateway.formats.sglang.body_fields import PER_PROMPT, RESERVED, items, read_fields
from gateway.formats.sglang.request import ABSENT, BodyFields
from gateway.formats.sglang.tally import Tally
from tests.formats.sglang.support import document
from tests.formats.support import compact

COUNTS = st.integers(0, 1000)
DOCUMENTS = st.builds(
    document, COUNTS, st.sampled_from([None, "stop", "length", "abort"]), index=st.none() | st.integers(0, 3)
)


def facts(documents: list[Any], samples: int, per_prompt: int = 1, *, long_way: bool = False) -> ReplyFacts:
    tally = Tally(samples, per_prompt)
    for one in documents:
        text = compact(one)
        tally.event(text.replace(b"{", b'{"index":"x",', 1) if long_way else text)
    return tally.facts


@given(st.lists(DOCUMENTS, max_size=8), st.integers(1, 4), st.integers(1, 2))
def test_facts_do_not_depend_on_how_a_document_was_decoded(
    documents: list[Any], samples: int, per_prompt: int
) -> None:
    """An ``index`` of a wrong type, which a later one replaces, makes a document decoded generically."""
    decoded = facts(documents, samples, per_prompt)
    assert facts(documents, samples, per_prompt, long_way=True) == decoded


def test_prompt_counts_that_are_left_out_for_once_are_not_counted_twice() -> None:
    without = document(2, index=0)
    del without["meta_info"]["prompt_tokens"], without["meta_info"]["cached_tokens"]
    found = facts([document(1, index=0), without, document(3, index=0), document(1, index=1)], 2)
    assert (found.prompt_tokens, found.cached_tokens, found.tokens) == (6, 4, 4)


@pytest.mark.parametrize("status", [400, 429, 503, 599, None, 0, 200, 399, 600])
def test_abort_ends_its_sample_and_one_with_an_error_status_counts_nothing(status: int | None) -> None:
    """The other samples go on; of several failures the first counts."""
    failed = status if status in (400, 429, 503, 599) else None
    aborted = document(1, {"type": "abort", "status_code": status}, index=1)
    ended, second = document(3, "stop", index=0), document(0, {"type": "abort", "status_code": 500}, index=2)
    own = 0 if failed else 1
    for documents, terminal, code, tokens in (
        ([aborted], False, failed, own),
        ([aborted, ended, second], True, failed or 500, own + 3),
    ):
        found = facts(documents, 3)
        assert (found.terminal, found.error_status, found.tokens) == (terminal, code, tokens)


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
    usual = compact({"stream": False} | body)
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
