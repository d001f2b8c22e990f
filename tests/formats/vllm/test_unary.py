"""Relaying replies that are no stream: whole up to the limit, then as they come."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import Reader, ReplyHead
from gateway.formats.passthrough import BUFFER_LIMIT
from gateway.formats.vllm import FORMAT
from tests.formats.support import JSON, PRIVATE, View, pieces
from tests.formats.vllm.support import reading, request

ENGINE = "generate-tokens-" + PRIVATE.dispatch[0]


def reply(*, pad: int = 0, usage_last: bool = False, **more: Any) -> bytes:
    """A reply of two samples as the engine spells it, with ``pad`` bytes more before the choices."""
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}
    choices = [
        {"index": 0, "finish_reason": "stop", "stop_reason": None, "token_ids": [1, 2]},
        {"index": 1, "finish_reason": "length", "stop_reason": None, "token_ids": [3, 4, 5]},
    ]
    head = {"request_id": ENGINE} if usage_last else {"request_id": ENGINE, "usage": usage}
    found = {**head, "pad": "x" * pad, "choices": choices, **more}
    if usage_last:
        found["usage"] = usage
    return json.dumps(found, separators=(",", ":")).encode()


def facts_of(reader: Reader) -> tuple[Any, ...]:
    facts = reader.facts
    return (
        facts.tokens,
        facts.finish_reasons,
        facts.prompt_tokens,
        facts.cached_tokens,
        facts.terminal,
        facts.error_status,
    )


FACTS = (5, ["stop", "length"], 3, 2, True, None)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_short_reply_is_buffered_until_it_is_complete(seed: int | None) -> None:
    """Nothing leaves before the last byte, so a broken reply can still be a clear error."""
    body = reply()
    reader = reading(stream=False)
    assert {reader.feed(part) for part in pieces(body, seed)} == {b""}
    assert reader.finish() == body
    assert facts_of(reader) == FACTS
    assert (reader.streaming, reader.identity) == (False, True)


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"{", reply()[:-1], reply() + b"x", b"[1]", b"null", b'{"a":"\xff"}', b"[" * 50_000],
)
def test_reply_that_is_no_object_is_malformed(body: bytes) -> None:
    reader = reading(stream=False)
    reader.feed(body)
    with pytest.raises(UpstreamMalformed):
        reader.finish()


@pytest.mark.parametrize(
    "found",
    [
        {"choices": None},
        {"choices": [7, {"finish_reason": 1, "token_ids": "x"}]},
        {"usage": {"prompt_tokens": 1.5}},
    ],
)
def test_object_of_another_shape_is_relayed(found: dict[str, Any]) -> None:
    body = json.dumps(found).encode()
    reader = reading(stream=False)
    assert reader.feed(body) + reader.finish() == body
    assert reader.facts.terminal


def test_unusual_types_do_not_hide_other_members() -> None:
    reader = reading(stream=False)
    reader.feed(reply(error=None).replace(b'"index":1', b'"index":"1"').replace(b'"x":', b""))
    reader.finish()
    assert facts_of(reader) == FACTS
    odd = reading(stream=False)
    odd.feed(reply().replace(b'"completion_tokens":5', b'"completion_tokens":"5"'))
    odd.finish()
    assert facts_of(odd) == FACTS


def test_reply_of_exactly_the_limit_is_buffered() -> None:
    body = reply(pad=BUFFER_LIMIT - len(reply()))
    assert len(body) == BUFFER_LIMIT
    reader = reading(stream=False)
    assert reader.feed(body) == b""
    assert reader.finish() == body
    longer = reading(stream=False)
    assert longer.feed(body + b" ") == body + b" "


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("usage_last", [False, True])
@pytest.mark.parametrize("size", [1000, 65_536, 10_000_000])
def test_long_reply_is_passed_on_with_its_facts(private: bool, usage_last: bool, size: int) -> None:
    """Over the limit bytes go on as they come, and the facts are the same wherever they stand."""
    body = reply(pad=BUFFER_LIMIT, usage_last=usage_last) + b"\n"
    reader = reading(stream=False, ids=PRIVATE if private else None)
    out = [reader.feed(body[place : place + size]) for place in range(0, len(body), size)]
    assert len(out[-1]) > 0
    expected = body.replace(ENGINE.encode(), b"generate-tokens-job-1") if private else body
    assert b"".join(out) + reader.finish() == expected
    assert facts_of(reader) == FACTS


@pytest.mark.parametrize("step", [1, 3, 7, 50])
def test_facts_of_a_long_reply_survive_small_pieces(step: int) -> None:
    """A member cut in two, even inside its number, is read once and whole."""
    body = reply(pad=BUFFER_LIMIT, usage_last=True)
    reader = reading(stream=False)
    split = BUFFER_LIMIT + 10
    reader.feed(body[:split])
    for place in range(split, len(body), step):
        reader.feed(body[place : place + step])
    reader.finish()
    assert facts_of(reader) == FACTS


def test_text_of_a_long_reply_is_not_taken_for_facts() -> None:
    """Generated text that spells a member has its quotes escaped."""
    text = json.dumps({"finish_reason": "fake", "usage": {"prompt_tokens": 99}}, separators=(",", ":"))
    reader = reading(stream=False)
    body = reply(pad=BUFFER_LIMIT, text=text)
    reader.feed(body)
    reader.finish()
    assert facts_of(reader) == FACTS


def test_paths_are_cut_from_a_failure_of_the_engine_and_no_other() -> None:
    """What a server's disk looks like is nobody's business, unless it is asked for."""
    body = b'{"error":{"message":"File \\"/opt/engine/core.py\\", line 7","code":500}}'
    cut = body.replace(b"/opt/engine/core.py", b"<path>")
    for status, seen in ((500, cut), (503, cut), (400, body), (404, body)):
        reader = reading(status=status)
        assert (reader.feed(body), reader.finish(), reader.identity) == (b"", seen, status < 500)
    passing = FORMAT.configured({"passthrough_engine_errors": "true"})
    reader = passing.reader(request(), View(), PRIVATE, ReplyHead(500, JSON))
    assert (reader.feed(body), reader.finish(), reader.identity) == (b"", body, True)
    encoded = reading(status=500, headers=[*JSON, (b"content-encoding", b"gzip")])
    assert (encoded.feed(body), encoded.finish()) == (b"", body)
