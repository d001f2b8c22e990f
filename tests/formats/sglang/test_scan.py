"""Skimming bytes finds what decoding them would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.contract import ReplyFacts
from gateway.formats.sglang.tally import Tally
from gateway.formats.sglang.unary import UnaryScanner
from tests.formats.sglang.support import cuts, document
from tests.formats.support import compact

LURES = st.sampled_from(
    ["", '"completion_tokens":9,', '"finish_reason":{"type":"stop"', '\\"prompt_tokens":9}']
)
DOCUMENTS = st.builds(
    document,
    st.integers(0, 10**9),
    st.sampled_from(["stop", "length", "abort"]),
    text=LURES | st.text(),
)


@given(st.lists(DOCUMENTS, min_size=1, max_size=4), st.integers(1, 2), st.integers(0, 10**6))
def test_facts_skimmed_are_the_facts_decoded(
    documents: list[Any], samples_per_prompt: int, seed: int
) -> None:
    body = compact(documents)
    decoded = Tally(len(documents), samples_per_prompt)
    decoded.reply(body)
    skimmed = ReplyFacts(terminal=True)
    scan = UnaryScanner(skimmed, samples_per_prompt)
    for piece in cuts(body, seed):
        scan.feed(piece)
    assert scan.complete()
    assert skimmed == decoded.facts


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        ([b'{"a":1}'], True),
        ([b" ", b"[", b"]", b"\n", b""], True),
        ([b'{"a":[]'], False),
        ([b"<html>"], False),
        ([], False),
        ([b"{"], False),
    ],
)
def test_whole_is_what_ends_with_the_bracket_it_began_with(pieces: list[bytes], whole: bool) -> None:
    scan = UnaryScanner(ReplyFacts(), 1)
    for piece in pieces:
        scan.feed(piece)
    assert scan.complete() is whole
