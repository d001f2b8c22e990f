"""Streams are relayed event by event, and never end cleanly without a terminal event."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamIncomplete, UpstreamMalformed
from gateway.formats.passthrough import PassthroughReader
from gateway.formats.sglang.reader import StreamReader
from gateway.formats.sglang.unary import UnaryReader
from tests.formats.sglang.support import event, reading, run
from tests.formats.support import DONE, EVENTS, JSON

LAST = event(2, "stop")
STREAM: dict[str, Any] = {"input_ids": [1], "stream": True}
UNARY: dict[str, Any] = {"input_ids": [1]}


@pytest.mark.parametrize(
    ("request_", "status", "headers", "kind"),
    [
        (STREAM, 200, EVENTS, StreamReader),
        (UNARY, 200, EVENTS, StreamReader),
        (STREAM, 200, [], StreamReader),
        (STREAM, 200, JSON, UnaryReader),
        (UNARY, 200, JSON, UnaryReader),
        (UNARY, 200, [], UnaryReader),
        (UNARY, 200, [(b"content-type", b"text/html")], UnaryReader),
        (STREAM, 200, [(b"content-type", b"text/html")], PassthroughReader),
        (UNARY, 200, [*JSON, (b"content-encoding", b"gzip")], PassthroughReader),
        (STREAM, 400, JSON, PassthroughReader),
    ],
)
def test_reader_is_chosen_by_the_head(
    request_: dict[str, Any], status: int, headers: list[tuple[bytes, bytes]], kind: type
) -> None:
    assert type(reading(request_, status=status, headers=headers)) is kind


def test_comment_and_other_fields_are_relayed() -> None:
    stream = b": keep-alive\n\nevent: token\nid: 7\n" + event() + b"retry: 5\n\n" + LAST + DONE
    assert run(reading(), [stream]).given == stream


def test_done_without_a_terminal_is_kept_and_becomes_an_error() -> None:
    reader = reading()
    assert reader.feed(event() + DONE) == event()
    with pytest.raises(UpstreamIncomplete) as caught:
        reader.finish()
    last = reader.fail(caught.value)
    assert last.startswith(b'data: {"error":{') and last.endswith(DONE)


def test_bytes_after_done_are_dropped() -> None:
    reader = reading()
    assert reader.feed(LAST + DONE + event() + b"junk") == LAST + DONE
    assert reader.feed(b"more junk") == b""
    assert reader.fail(UpstreamIncomplete("late")) == b""
    assert reader.finish() == b""


def test_unfinished_event_after_a_terminal_is_relayed() -> None:
    assert run(reading(), [LAST + b"data: [DO"]).given == LAST + b"data: [DO"


def test_failure_in_the_middle_ends_with_an_event() -> None:
    reader = reading()
    reader.feed(event() + b"data: {")
    assert reader.fail(UpstreamIncomplete("silent")) == (
        b'data: {"error":{"message":"silent","type":"upstream_incomplete","code":502,"retryable":false}}\n\n'
        + DONE
    )


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (b'{"message":"too big","type":"invalid_request_error","code":400,"retryable":false}', 400),
        (b'{"message":"x"}', 500),
        (b'{"message":"x","code":"503"}', 500),
        (b'{"message":"x","code":7}', 500),
        (b'"some words"', 500),
    ],
)
def test_error_event_is_terminal_and_relayed(error: bytes, status: int) -> None:
    reader = reading()
    stream = event() + b'data: {"error":%b}\n\n' % error + DONE
    outcome = run(reader, [stream])
    assert (outcome.given, outcome.error) == (stream, None)
    assert (reader.facts.terminal, reader.facts.error_status) == (True, status)


def test_null_error_beside_a_sample_is_none() -> None:
    reader = reading()
    run(reader, [event(2, "stop", error=None) + DONE])
    assert reader.facts.error_status is None


@pytest.mark.parametrize(
    "data",
    [b"{", b"", b"[]", b"[DONE", b'{"x":"\xff"}', b'{"x":NaN}', b"[" * 100_000],
)
def test_event_that_is_no_json_object_is_malformed(data: bytes) -> None:
    with pytest.raises(UpstreamMalformed):
        reading().feed(b"data: " + data + b"\n\n")


def test_events_before_a_malformed_one_are_sent_with_the_error() -> None:
    reader = reading()
    with pytest.raises(UpstreamMalformed) as caught:
        reader.feed(event(1) + event(2) + b"data: {\n\n" + event(3))
    given = reader.fail(caught.value)
    assert given.startswith(event(1) + event(2) + b'data: {"error"')
    assert reader.facts.tokens == 2


@pytest.mark.parametrize(
    "document",
    [
        b"{}",
        b'{"meta_info":null}',
        b'{"meta_info":"x","index":"y"}',
        b'{"meta_info":{"completion_tokens":"5","prompt_tokens":1.5,"cached_tokens":{}}}',
        b'{"index":[1],"text":5}',
    ],
)
def test_object_of_a_surprising_shape_is_relayed(document: bytes) -> None:
    stream = b"data: " + document + b"\n\n" + LAST + DONE
    reader = reading()
    assert run(reader, [stream]).given == stream
    assert reader.facts.tokens == 2


@pytest.mark.parametrize(
    ("finish", "word"),
    [
        (b'"stop"', "stop"),
        (b'{"type":7}', ""),
        (b"true", ""),
        (b'{"type":"length","status_code":"x"}', "length"),
    ],
)
def test_finish_reason_of_a_surprising_shape_still_finishes(finish: bytes, word: str) -> None:
    reader = reading()
    stream = b'data: {"meta_info":{"finish_reason":%b,"completion_tokens":3}}\n\n' % finish
    assert run(reader, [stream]).error is None
    assert (reader.facts.finish_reasons, reader.facts.tokens) == ([word], 3)


BATCH: dict[str, Any] = {"input_ids": [[1], [2]], "stream": True}
TWICE: dict[str, Any] = {"input_ids": [[1], [2]], "stream": True, "sampling_params": {"n": 2}}


def test_stream_of_a_batch_is_over_when_every_sample_is() -> None:
    reader = reading(BATCH)
    reader.feed(event(1, index=0) + event(3, "stop", index=1))
    assert not reader.facts.terminal
    assert reader.feed(DONE) == b""
    reader = reading(BATCH)
    reader.feed(event(1, index=0) + event(3, "stop", index=1) + event(2, "length", index=0))
    facts = reader.facts
    assert (facts.terminal, facts.tokens, facts.finish_reasons) == (True, 5, ["stop", "length"])
    assert (facts.prompt_tokens, facts.cached_tokens) == (6, 4)


def test_stream_of_a_sample_that_finishes_twice_counts_it_once() -> None:
    reader = reading(BATCH)
    reader.feed(event(1, "stop", index=0) * 2)
    assert (reader.facts.terminal, reader.facts.finish_reasons) == (False, ["stop"])


def test_stream_of_no_prompt_is_over_at_once() -> None:
    reader = reading({"text": [], "stream": True})
    assert run(reader, [DONE]).given == DONE


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=20))
def test_tokens_only_grow(steps: list[tuple[int, int]]) -> None:
    reader = reading(TWICE)
    highest = {0: 0, 1: 0, 2: 0, 3: 0}
    seen = 0
    for index, tokens in steps:
        reader.feed(event(tokens, index=index))
        highest[index] = max(highest[index], tokens)
        assert reader.facts.tokens >= seen
        seen = reader.facts.tokens
    assert seen == sum(highest.values())
