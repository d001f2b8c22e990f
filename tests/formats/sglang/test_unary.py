"""Replies that are no stream: held until whole, up to a limit."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Ids
from gateway.formats.passthrough import BUFFER_LIMIT
from tests.formats.sglang.support import cuts, document, reading, run
from tests.formats.support import HEX, JSON, PRIVATE, compact

UNARY: dict[str, Any] = {"input_ids": [1]}
TWICE: dict[str, Any] = {"input_ids": [[1], [2]], "sampling_params": {"n": 2}}
LONG = "x" * BUFFER_LIMIT


# Unary, short.


def test_reply_is_held_until_it_is_whole() -> None:
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


def test_reply_of_several_samples_is_summed_by_prompt() -> None:
    reader = reading(TWICE)
    body = compact([document(place + 1, "stop") for place in range(4)])
    assert run(reader, [body]).given == body
    facts = reader.facts
    assert (facts.tokens, facts.prompt_tokens, facts.cached_tokens) == (10, 6, 4)
    assert facts.finish_reasons == ["stop"] * 4


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b' {"x":1}\n',
        b"\n[1]",
        b'[{"meta_info":7},null]',
        b'{"meta_info":{"completion_tokens":"1"}}',
    ],
)
def test_reply_of_a_surprising_shape_is_passed_on(body: bytes) -> None:
    reader = reading(UNARY)
    assert run(reader, [body]).given == body
    assert reader.facts.terminal


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"text":"cut',
        b"<html>",
        b'"text"',
        b"7",
        b"null",
        b'{"x":"\xff"}',
        b'[{"x":"\xff"}]',
        b"{}{}",
    ],
)
def test_reply_that_is_no_document_is_malformed(body: bytes) -> None:
    assert isinstance(run(reading(UNARY), [body]).error, UpstreamMalformed)


def test_reply_with_an_error_inside_a_200_is_passed_on_and_noted() -> None:
    reader = reading(UNARY)
    body = b'{"error":{"message":"x","code":503}}'
    assert run(reader, [body]).given == body
    assert reader.facts.error_status == 503


def test_reply_has_no_end_in_band() -> None:
    reader = reading(UNARY)
    reader.feed(b"{")
    assert reader.fail(UpstreamIncomplete("silent")) == b""


def test_private_id_in_a_reply_is_mapped_back() -> None:
    reader = reading(UNARY, ids=PRIVATE)
    assert not reader.identity
    body = compact(document(1, "stop", rid=HEX))
    assert run(reader, cuts(body, 1)).given == compact(document(1, "stop", rid="job-1"))


# Unary, over the limit.


def test_long_reply_is_passed_on_from_the_limit_on() -> None:
    reader = reading(UNARY)
    body = compact(document(5, "length", note=LONG))
    assert reader.feed(body[:BUFFER_LIMIT]) == b""
    assert reader.feed(body[BUFFER_LIMIT:-10]) == body[:-10]
    assert reader.feed(body[-10:]) == body[-10:]
    assert reader.finish() == b""


@pytest.mark.parametrize("seed", range(4))
def test_long_reply_gives_the_same_facts_and_bytes(seed: int) -> None:
    """With a private id, and text that looks like what is searched for."""
    lure = f'"completion_tokens":7,"id":"{HEX}"'
    request = TWICE | {"rid": "job-1", "sampling_params": {}}
    documents = [
        document(place + 3, "stop", rid=f"{HEX}_{place}", text=lure, note=LONG) for place in range(2)
    ]
    reader = reading(request, ids=PRIVATE)
    body = compact(documents)
    outcome = run(reader, cuts(body, seed))
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


# Opaque.


@pytest.mark.parametrize("body", [b"", b"Internal Server Error", b'{"error":"Unauthorized"}', b"\xff\x00"])
def test_error_reply_is_passed_on_unread(body: bytes) -> None:
    reader = reading(UNARY, status=500, headers=[])
    assert (reader.streaming, reader.identity) == (False, False)
    assert reader.feed(body) == b""
    assert reader.finish() == body
    assert reader.fail(UpstreamIncomplete("x")) == b""
    assert (reader.facts.tokens, reader.facts.error_status) == (0, None)


def test_other_reply_to_a_stream_is_malformed_at_its_end() -> None:
    reader = reading({"input_ids": [1], "stream": True}, headers=[(b"content-type", b"text/html")])
    assert reader.feed(b"<html>") == b""
    with pytest.raises(UpstreamMalformed):
        reader.finish()


def test_document_instead_of_a_stream_is_read_as_a_whole() -> None:
    reader = reading({"input_ids": [1], "stream": True}, headers=JSON)
    body = compact(document(3, "length"))
    assert run(reader, [body]).given == body
    assert reader.facts.tokens == 3


def test_encoded_error_reply_keeps_every_byte() -> None:
    """What looks like a path in compressed bytes is none."""
    body = b"\x1f\x8b /opt/engine/core.py "
    reader = reading(UNARY, status=500, headers=[*JSON, (b"content-encoding", b"gzip")])
    assert (reader.feed(body), reader.finish(), reader.identity) == (b"", body, True)
