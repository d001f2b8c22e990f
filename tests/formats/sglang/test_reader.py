"""Streams are relayed event by event, and never end cleanly without a terminal event."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Reader
from gateway.formats.passthrough import PassthroughReader
from gateway.formats.sglang.reader import StreamReader
from gateway.formats.sglang.unary import UnaryReader
from tests.formats.sglang.support import event, reading, run
from tests.formats.support import DONE, EVENTS, JSON, PRIVATE

LAST = event(2, "stop")
STREAM: dict[str, Any] = {"input_ids": [1], "stream": True}
UNARY: dict[str, Any] = {"input_ids": [1]}


def kind_of(request: dict[str, Any], status: int, headers: list[tuple[bytes, bytes]]) -> type:
    return type(reading(request, status=status, headers=headers))


# Which reader.


@pytest.mark.parametrize(
    ("request_", "status", "headers", "kind"),
    [
        (STREAM, 200, EVENTS, StreamReader),
        (UNARY, 200, EVENTS, StreamReader),
        (STREAM, 200, [], StreamReader),
        (STREAM, 200, [(b"content-type", b"Text/Event-Stream")], StreamReader),
        (STREAM, 200, JSON, UnaryReader),
        (UNARY, 200, JSON, UnaryReader),
        (UNARY, 200, [(b"content-type", b"application/json; charset=utf-8")], UnaryReader),
        (UNARY, 200, [], UnaryReader),
        (UNARY, 200, [(b"content-type", b"text/html")], UnaryReader),
        (STREAM, 200, [(b"content-type", b"text/html")], PassthroughReader),
        (UNARY, 200, [*JSON, (b"content-encoding", b"gzip")], PassthroughReader),
        (UNARY, 200, [*JSON, (b"content-encoding", b"Identity")], UnaryReader),
        (STREAM, 200, [*EVENTS, (b"content-encoding", b"br")], PassthroughReader),
        (STREAM, 400, JSON, PassthroughReader),
        (STREAM, 503, EVENTS, PassthroughReader),
        (UNARY, 500, [], PassthroughReader),
        (UNARY, 204, [], PassthroughReader),
    ],
)
def test_reader_is_chosen_by_the_head(
    request_: dict[str, Any], status: int, headers: list[tuple[bytes, bytes]], kind: type
) -> None:
    assert kind_of(request_, status, headers) is kind


# Passing on.


def test_event_is_relayed_at_once_and_unchanged() -> None:
    reader = reading()
    assert reader.streaming
    odd = b'data:{"meta_info" : {"finish_reason":null, "completion_tokens":1},"x":1e-7 }\r\n\r\n'
    assert reader.feed(odd[:30]) == b""
    assert reader.feed(odd[30:]) == odd
    assert reader.facts.tokens == 1


def test_comment_and_other_fields_are_relayed() -> None:
    stream = b": keep-alive\n\nevent: token\nid: 7\n" + event() + b"retry: 5\n\n" + LAST + DONE
    assert run(reading(), [stream]).given == stream


def test_document_over_several_data_lines_is_read() -> None:
    reader = reading()
    stream = b'data: {"meta_info":\ndata: {"finish_reason":{"type":"stop"},"completion_tokens":4}}\n\n'
    assert run(reader, [stream]).given == stream
    assert (reader.facts.tokens, reader.facts.terminal) == (4, True)


# Ends.


def test_done_after_a_terminal_is_relayed_at_once() -> None:
    reader = reading()
    assert reader.feed(LAST + DONE) == LAST + DONE


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
    assert reader.finish() == b""


def test_unfinished_event_after_a_terminal_is_relayed() -> None:
    assert run(reading(), [LAST + b"data: [DO"]).given == LAST + b"data: [DO"


def test_failure_after_done_adds_nothing() -> None:
    reader = reading()
    reader.feed(LAST + DONE)
    assert reader.fail(UpstreamIncomplete("late")) == b""


def test_failure_in_the_middle_ends_with_an_event() -> None:
    reader = reading()
    reader.feed(event() + b"data: {")
    assert reader.fail(UpstreamIncomplete("silent")) == (
        b'data: {"error":{"message":"silent","type":"upstream_incomplete","code":502,"retryable":false}}\n\n'
        + DONE
    )


# Errors the engine put into its 200.


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (b'{"message":"too big","type":"invalid_request_error","code":400,"retryable":false}', 400),
        (b'{"message":"x","code":503}', 503),
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


def test_abort_with_a_status_is_noted_and_its_tokens_are_not() -> None:
    reader = reading()
    refused = event(1, {"type": "abort", "status_code": 503, "message": "The request queue is full."})
    assert run(reader, [refused + DONE]).given == refused + DONE
    facts = reader.facts
    assert (facts.tokens, facts.finish_reasons, facts.error_status) == (0, ["abort"], 503)


def test_null_error_beside_a_sample_is_none() -> None:
    reader = reading()
    run(reader, [event(2, "stop", error=None) + DONE])
    assert reader.facts.error_status is None


# Nonsense.


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"",
        b"hello",
        b"[]",
        b"7",
        b"null",
        b'"x"',
        b"[DONE",
        b'{"x":"\xff"}',
        b'{"x":NaN}',
        b"[" * 100_000,
    ],
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
        b'{"meta_info":[]}',
        b'{"meta_info":"x","index":"y"}',
        b'{"meta_info":{"completion_tokens":"5","prompt_tokens":1.5,"cached_tokens":{}}}',
        b'{"meta_info":{"completion_tokens":null}}',
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


# Several samples.


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


def test_stream_with_samples_counts_each_prompt_once() -> None:
    reader = reading(TWICE)
    reader.feed(b"".join(event(place + 1, "stop", index=place) for place in range(4)))
    assert (reader.facts.tokens, reader.facts.prompt_tokens) == (10, 6)


def test_stream_of_a_sample_that_finishes_twice_counts_it_once() -> None:
    reader = reading(BATCH)
    reader.feed(event(1, "stop", index=0) * 2)
    assert (reader.facts.terminal, reader.facts.finish_reasons) == (False, ["stop"])


def test_stream_of_no_prompt_is_over_at_once() -> None:
    reader = reading({"text": [], "stream": True})
    assert run(reader, [DONE]).given == DONE


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=20))
def test_tokens_only_grow(steps: list[tuple[int, int]]) -> None:
    """Whatever totals an engine reports, and in whatever order."""
    reader = reading(TWICE)
    highest = {0: 0, 1: 0, 2: 0, 3: 0}
    seen = 0
    for index, tokens in steps:
        reader.feed(event(tokens, index=index))
        highest[index] = max(highest[index], tokens)
        assert reader.facts.tokens >= seen
        seen = reader.facts.tokens
    assert seen == sum(highest.values())


# Ids.


def renamed(reader: Reader, stream: bytes) -> bytes:
    outcome = run(reader, [stream])
    assert outcome.error is None
    return outcome.given


def test_ids_of_parallel_samples_are_left_alone() -> None:
    """The engine created them; the private id is not in the reply."""
    request = STREAM | {"rid": "job-1", "sampling_params": {"n": 2}}
    stream = event(1, "stop", rid="e" * 32, index=0) + event(1, "stop", rid="d" * 32, index=1)
    assert renamed(reading(request, ids=PRIVATE), stream) == stream
