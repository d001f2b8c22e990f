"""Facts are the same whether a document has the usual types or not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.contract import ReplyFacts
from gateway.formats.sglang.tally import Tally
from tests.formats.sglang.support import document
from tests.formats.support import compact

COUNTS = st.integers(0, 1000)
DOCUMENTS = st.builds(
    document,
    COUNTS,
    st.sampled_from([None, "stop", "length", "abort"]),
    index=st.none() | st.integers(0, 3),
)


def facts(
    documents: list[Any], samples: int, samples_per_prompt: int = 1, *, long_way: bool = False
) -> ReplyFacts:
    tally = Tally(samples, samples_per_prompt)
    for one in documents:
        text = compact(one)
        tally.event(text.replace(b"{", b'{"index":"x",', 1) if long_way else text)
    return tally.facts


@given(st.lists(DOCUMENTS, max_size=8), st.integers(1, 4), st.integers(1, 2))
def test_facts_do_not_depend_on_how_a_document_was_decoded(
    documents: list[Any], samples: int, samples_per_prompt: int
) -> None:
    """An ``index`` of a wrong type, which a later one replaces, makes a document decoded generically."""
    assert facts(documents, samples, samples_per_prompt, long_way=True) == facts(
        documents, samples, samples_per_prompt
    )


def test_prompt_counts_that_are_left_out_for_once_are_not_counted_twice() -> None:
    without = document(2, index=0)
    del without["meta_info"]["prompt_tokens"], without["meta_info"]["cached_tokens"]
    found = facts([document(1, index=0), without, document(3, index=0), document(1, index=1)], 2)
    assert (found.prompt_tokens, found.cached_tokens, found.tokens) == (6, 4, 4)


@pytest.mark.parametrize("status", [400, 429, 503, 599])
def test_abort_with_an_error_status_ends_its_sample(status: int) -> None:
    """The other samples go on; the counters of the refused one are ignored."""
    refused = document(1, {"type": "abort", "status_code": status}, index=1)
    found = facts([refused], 2)
    assert (found.terminal, found.error_status, found.tokens) == (False, status, 0)
    found = facts([refused, document(3, "stop", index=0)], 2)
    assert (found.terminal, found.error_status, found.tokens) == (True, status, 3)


def test_first_of_several_failures_counts() -> None:
    aborts = [document(0, {"type": "abort", "status_code": code}, index=code - 500) for code in (500, 503)]
    assert facts(aborts, 4).error_status == 500


@pytest.mark.parametrize("status", [None, 0, 200, 399, 600])
def test_abort_with_another_status_ends_one(status: int | None) -> None:
    found = facts([document(1, {"type": "abort", "status_code": status}, index=1)], 4)
    assert (found.terminal, found.error_status, found.tokens) == (False, None, 1)
