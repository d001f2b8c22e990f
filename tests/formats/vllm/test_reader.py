"""Relaying a worker's stream: bytes, facts, ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Headers, ReplyHead
from gateway.formats.passthrough import PassthroughReader
from gateway.formats.vllm import FORMAT
from gateway.formats.vllm.reader import StreamReader
from gateway.formats.vllm.unary import UnaryReader
from gateway.testing.drive import drive
from tests.formats.support import DONE, EVENTS, JSON, PRIVATE, View, pieces
from tests.formats.vllm.support import chunk, reading, request

STOP = chunk([1], "stop")
LOST = UpstreamIncomplete("The worker went away")
USAGE = (
    b'data: {"request_id":"generate-tokens-a","usage":{"prompt_tokens":3,"total_tokens":5,'
    b'"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":1}},"output_mode":"tokens","choices":[]}\n\n'
)


def error_event(error: GatewayError) -> bytes:
    envelope = {"message": error.message, "type": "InternalServerError", "param": None, "code": error.status}
    return b"data: %b\n\n" % json.dumps({"error": envelope}).encode()


@pytest.mark.parametrize(
    ("status", "headers", "kind", "streaming"),
    [
        (200, EVENTS, StreamReader, True),
        (200, JSON, UnaryReader, False),
        (200, [*JSON, (b"content-encoding", b"gzip")], PassthroughReader, False),
        (200, [*EVENTS, (b"content-encoding", b"br")], PassthroughReader, True),
        (200, [], PassthroughReader, False),
        (400, JSON, PassthroughReader, False),
        (500, EVENTS, PassthroughReader, False),
    ],
)
def test_reader_fits_the_head(status: int, headers: Headers, kind: type, streaming: bool) -> None:
    reader = reading(status=status, headers=headers)
    assert type(reader) is kind
    assert reader.streaming is streaming


def test_facts_grow_with_the_stream() -> None:
    reader = reading()
    seen = []
    for part in (chunk([1, 2]), chunk([]), chunk([3], "stop"), USAGE, DONE):
        reader.feed(part)
        seen.append((reader.facts.tokens, reader.facts.terminal))
    assert seen == [(2, False), (2, False), (3, True), (3, True), (3, True)]
    assert reader.facts.finish_reasons == ["stop"]
    assert (reader.facts.prompt_tokens, reader.facts.cached_tokens) == (3, 1)


def test_usage_of_one_sample_is_not_the_total() -> None:
    reader = reading(n=2)
    usage = {"prompt_tokens": 3, "total_tokens": 90, "completion_tokens": 87}
    reader.feed(chunk([1], usage=usage))
    assert (reader.facts.tokens, reader.facts.prompt_tokens) == (1, 3)


def test_total_usage_tells_tokens_that_no_event_named() -> None:
    """Where ids are left out of the events, the engine's own count stands."""
    reader = reading()
    reader.feed(b'data: {"choices":[{"index":0,"finish_reason":"stop","text":"ab"}]}\n\n' + USAGE)
    assert reader.facts.tokens == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_several_samples_are_over_when_each_is(order: tuple[int, ...]) -> None:
    reader = reading(n=3)
    for place, index in enumerate(order):
        assert not reader.facts.terminal
        reader.feed(chunk([1], index=index) + chunk([2], "length", index=index))
        reader.feed(chunk([], "length", index=index))
        assert len(reader.facts.finish_reasons) == place + 1
    assert reader.facts.terminal
    assert reader.facts.tokens == 6


def test_done_without_a_finish_becomes_an_error() -> None:
    reader = reading()
    assert reader.feed(chunk([1]) + DONE) == chunk([1])
    with pytest.raises(UpstreamIncomplete) as caught:
        reader.finish()
    assert reader.fail(caught.value) == error_event(caught.value) + DONE


@pytest.mark.parametrize("rest", [DONE[:-1], b"data: [DO", USAGE[:-2]])
def test_last_bytes_without_a_blank_line_are_kept(rest: bytes) -> None:
    complete = chunk([1], "stop") + rest
    assert drive(reading(), [complete]).out == complete


def test_finish_in_an_event_that_was_not_closed_counts() -> None:
    """A worker that leaves out the last blank line has still said all."""
    complete = chunk([1], "stop")[:-2]
    reader = reading()
    assert reader.feed(complete) == b""
    assert reader.finish() == complete
    assert reader.facts.tokens == 1


def test_bytes_after_done_are_dropped() -> None:
    complete = chunk([1], "stop") + DONE
    reader = reading()
    assert reader.feed(complete + chunk([9])) == chunk([1], "stop")
    assert reader.feed(b"garbage\n\n") == b""
    assert reader.finish() == DONE
    assert reader.facts.tokens == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [({"code": 400}, 400), ({"code": "400"}, 500), ({"code": 7}, 500), ("scaling", 500), (False, 500)],
)
def test_error_without_a_usable_code_is_a_500(error: Any, status: int) -> None:
    reader = reading()
    reader.feed(b"data: %b\n\n" % json.dumps({"error": error}).encode())
    assert (reader.facts.terminal, reader.facts.error_status) == (True, status)


def test_error_that_is_null_is_none() -> None:
    reader = reading()
    reader.feed(chunk([1], error=None))
    assert (reader.facts.terminal, reader.facts.error_status) == (False, None)


@pytest.mark.parametrize(
    "event",
    [
        b"data: {\n\n",
        b"data: \n\n",
        b"data: [1]\n\n",
        b'data: {"a":"\xff"}\n\n',
        b"data: %b\n\n" % (b"[" * 100_000),
        b'data: {"a":%b}\n\n' % (b"[" * 100_000),
    ],
)
def test_event_that_is_no_object_is_malformed(event: bytes) -> None:
    with pytest.raises(UpstreamMalformed):
        reading().feed(event)


def test_good_events_before_a_broken_one_reach_the_client() -> None:
    """Those that came in the same read lead the in-band error, so the cut of reads changes nothing."""
    good, bad = chunk([1]) + chunk([2]), b"data: {\n\n"
    reader = reading()
    with pytest.raises(UpstreamMalformed) as caught:
        reader.feed(good + bad + chunk([3]))
    assert reader.fail(caught.value) == good + error_event(caught.value) + DONE
    assert reader.facts.tokens == 2
    assert drive(reading(), [good + bad]).out == drive(reading(), [good, bad]).out


@pytest.mark.parametrize(
    "found",
    [
        {"choices": None},
        {"choices": [None, 7, "x"]},
        {"choices": [{"index": "0", "finish_reason": 7, "token_ids": "ab"}]},
        {"choices": [{"token_ids": [None, "x"]}]},
        {"usage": 7, "choices": []},
        {"usage": {"prompt_tokens": "3", "prompt_tokens_details": 7}},
        {"usage": {"prompt_tokens_details": {"cached_tokens": "x"}}},
        {},
    ],
)
def test_object_of_another_shape_is_relayed(found: dict[str, Any]) -> None:
    event = b"data: %b\n\n" % json.dumps(found).encode()
    assert reading().feed(event) == event


def test_unusual_types_do_not_hide_other_members() -> None:
    event = chunk([1, 2], "stop", usage={"prompt_tokens": 3, "completion_tokens": "2"})
    reader = reading()
    reader.feed(event)
    facts = reader.facts
    assert (facts.tokens, facts.finish_reasons, facts.prompt_tokens, facts.terminal) == (2, ["stop"], 3, True)


def test_number_that_only_python_writes_is_relayed() -> None:
    """A client that reads the engine's NaN reads it through the gateway as well."""
    event = b'data: {"choices":[{"index":0,"token_ids":[1],"finish_reason":"stop","x":NaN}]}\n\n'
    reader = reading()
    assert reader.feed(event) == event
    assert (reader.facts.tokens, reader.facts.terminal) == (1, True)


@pytest.mark.parametrize(
    "complete",
    [
        b": ping\n\n" + chunk([1], "stop") + b": pong\n\n" + DONE,
        (chunk([1], "stop") + DONE).replace(b"\n", b"\r\n"),
    ],
)
@pytest.mark.parametrize("seed", [None, 1])
def test_any_spelling_of_events_is_read(complete: bytes, seed: int | None) -> None:
    reader = reading()
    assert drive(reader, pieces(complete, seed)).out == complete
    assert (reader.facts.tokens, reader.facts.terminal) == (1, True)


def test_private_id_is_mapped_in_events_sent_with_an_error() -> None:
    engine = "generate-tokens-" + PRIVATE.dispatch[0]
    out = drive(reading(ids=PRIVATE), [chunk([1], request_id=engine) + b"data: {\n\n"]).out
    assert b'"request_id":"generate-tokens-job-1"' in out
    assert engine.encode() not in out


def test_failure_is_reported_once() -> None:
    reader = reading()
    reader.feed(chunk([1]))
    assert reader.fail(LOST) == error_event(LOST) + DONE
    assert reader.fail(LOST) == b""
    ended = reading()
    ended.feed(chunk([1], "stop") + DONE)
    assert ended.finish() == DONE
    assert ended.fail(LOST) == b""


@pytest.mark.parametrize(("sent", "end"), [(STOP + DONE, DONE), (STOP, error_event(LOST) + DONE)])
def test_connection_lost_after_a_finish_is_an_error_unless_done_was_received(sent: bytes, end: bytes) -> None:
    """After DONE only the last bytes of the framing are missing; before it, more might have come."""
    reader = reading()
    reader.feed(sent)
    assert reader.fail(LOST) == end


@pytest.mark.parametrize("code", [400, 500, None])
def test_paths_are_cut_from_an_error_event_of_a_failure(code: int | None) -> None:
    """A refusal is about the client's own input and stays as it is."""
    event = b"data: %b\n\n" % json.dumps({"error": {"message": "in /opt/x/y.py", "code": code}}).encode()
    cut = event if code in (400, 422) else event.replace(b"/opt/x/y.py", b"<path>")
    assert reading().feed(event) == cut
    passing = FORMAT.configured({"passthrough_engine_errors": "true"})
    reader = passing.reader(request(), View(), PRIVATE, ReplyHead(200, EVENTS))
    assert reader.feed(event) == event
