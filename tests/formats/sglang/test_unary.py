"""Unary replies are buffered up to a limit, then relayed and scanned."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import Ids, ReplyFacts
from gateway.formats.passthrough import BUFFER_LIMIT
from gateway.formats.sglang.tally import Tally
from gateway.formats.sglang.unary import UnaryScanner
from tests.formats.sglang.support import document, reading, run
from tests.formats.support import HEX, JSON, PRIVATE, compact, pieces

UNARY: dict[str, Any] = {"input_ids": [1]}
TWICE: dict[str, Any] = {"input_ids": [[1], [2]], "sampling_params": {"n": 2}}
LONG = "x" * BUFFER_LIMIT


def test_reply_is_buffered_until_it_is_complete() -> None:
    reader = reading(UNARY)
    body = compact(document(3, "length"))
    assert not reader.streaming
    assert reader.identity
    assert reader.feed(body[:50]) == b""
    assert reader.feed(body[50:]) == b""
    assert reader.finish() == body
    facts = reader.facts
    assert (facts.tokens, facts.prompt_tokens, facts.cached_tokens) == (3, 3, 2)
    assert (facts.finish_reasons, facts.terminal, facts.error_status) == (["length"], True, None)


@pytest.mark.parametrize(
    "body",
    [b"{}", b"\n[1]", b'[{"meta_info":7},null]', b'{"meta_info":{"completion_tokens":"1"}}'],
)
def test_reply_of_a_surprising_shape_is_relayed(body: bytes) -> None:
    reader = reading(UNARY)
    assert run(reader, [body]).given == body
    assert reader.facts.terminal


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"<html>", b"7", b'{"x":"\xff"}', b'[{"x":"\xff"}]', b"{}{}"],
)
def test_reply_that_is_no_document_is_malformed(body: bytes) -> None:
    assert isinstance(run(reading(UNARY), [body]).error, UpstreamMalformed)


def test_long_reply_is_relayed_above_the_limit() -> None:
    reader = reading(UNARY)
    body = compact(document(5, "length", note=LONG))
    assert reader.feed(body[:BUFFER_LIMIT]) == b""
    assert reader.feed(body[BUFFER_LIMIT:-10]) == body[:-10]
    assert reader.feed(body[-10:]) == body[-10:]
    assert reader.finish() == b""


@pytest.mark.parametrize("seed", range(4))
def test_long_reply_gives_the_same_facts_and_bytes(seed: int) -> None:
    """With a private id, and text that looks like the members searched for."""
    lure = f'"completion_tokens":7,"id":"{HEX}"'
    request = TWICE | {"rid": "job-1", "sampling_params": {}}
    documents = [
        document(place + 3, "stop", rid=f"{HEX}_{place}", text=lure, note=LONG) for place in range(2)
    ]
    reader = reading(request, ids=PRIVATE)
    body = compact(documents)
    outcome = run(reader, pieces(body, seed))
    wanted = body.replace(b'"%b_' % HEX.encode(), b'"job-1_')
    assert (outcome.error, outcome.given) == (None, wanted)
    facts = reader.facts
    assert (facts.tokens, facts.prompt_tokens, facts.cached_tokens) == (7, 6, 4)
    assert (facts.finish_reasons, facts.terminal) == (["stop", "stop"], True)


def test_long_reply_with_another_end_is_malformed() -> None:
    outcome = run(reading(UNARY), [compact({"note": LONG})[:-1]])
    assert isinstance(outcome.error, UpstreamMalformed)


def test_long_reply_cut_inside_an_id_is_mapped_back() -> None:
    reader = reading(UNARY, ids=Ids(("job-1",), (HEX,)))
    body = compact({"note": LONG, "id": HEX, "last": HEX[:7]})
    half = body.index(HEX.encode()) + 9
    assert run(reader, [body[:half], body[half:]]).given == body.replace(b'"%b"' % HEX.encode(), b'"job-1"')


def test_encoded_error_reply_keeps_every_byte() -> None:
    """Compressed bytes may look like a path."""
    body = b"\x1f\x8b /opt/engine/core.py "
    reader = reading(UNARY, status=500, headers=[*JSON, (b"content-encoding", b"gzip")])
    assert (reader.feed(body), reader.finish(), reader.identity) == (b"", body, True)


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
def test_scanned_facts_are_the_decoded_facts(
    documents: list[Any], samples_per_prompt: int, seed: int
) -> None:
    body = compact(documents)
    decoded = Tally(len(documents), samples_per_prompt)
    decoded.reply(body)
    scanned = ReplyFacts(terminal=True)
    scanner = UnaryScanner(scanned, samples_per_prompt)
    for piece in pieces(body, seed):
        scanner.feed(piece)
    assert scanner.complete()
    assert scanned == decoded.facts


@pytest.mark.parametrize(
    ("pieces", "complete"),
    [([b" ", b"[", b"]", b"\n", b""], True), ([b'{"a":[]'], False), ([b"<html>"], False), ([], False)],
)
def test_reply_ends_with_the_bracket_it_began_with(pieces: list[bytes], complete: bool) -> None:
    scanner = UnaryScanner(ReplyFacts(), 1)
    for piece in pieces:
        scanner.feed(piece)
    assert scanner.complete() is complete
