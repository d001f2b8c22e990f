"""An event of many MiB is relayed in steps, with the same result as at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats import large_event
from gateway.formats.contract import Ids, Reader, ReplyHead
from gateway.formats.json import windows as json_windows
from gateway.formats.relayed import RelayedFormat
from gateway.formats.sglang import FORMAT as SGLANG
from gateway.formats.sse import EventScanner
from gateway.formats.vllm import FORMAT as VLLM
from gateway.testing.damage import damaged, splits
from tests.formats.sglang.support import same
from tests.formats.support import PRIVATE, View, run_steps

FORMATS: dict[str, Any] = {
    "sglang": SGLANG,
    "vllm": VLLM,
    "relayed": RelayedFormat("/v1/chat/completions", "any"),
}
BODY = {
    "sglang": b'{"input_ids":[1],"stream":true}',
    "vllm": b'{"token_ids":[1],"sampling_params":{},"stream":true}',
    "relayed": b'{"stream":true}',
}
HEAD = ReplyHead(200, [(b"content-type", b"text/event-stream")])
_USUAL = (
    '"meta_info":{"id":"ID","x":[1, 2],"y":"é \\"b\\"","finish_reason":{"type":"stop"},"completion_tokens":3}'
)
_FAILED = (
    '"meta_info":{"id":"ID","z":"/usr/lib/a.py","finish_reason":'
    '{"type":"abort","status_code":500,"message":"/usr/lib/b.py x"}}'
)
EVENTS = {
    "sglang": [
        '{"text":"aé","output_ids":[1,2],USUAL}',
        '{"text":"a","index":0,"routing_data":{"worker":"w"},USUAL}',
        '{"routing_data":7,USUAL}',
        '{"text":"/usr/lib/a.py",FAILED}',
        '{"error":{"message":"in /usr/lib/b.py","code":503}}',
        '{"meta_info":[1,2,3],"text":"an odd one, which is passed on as it is"}',
        "[1,2,3]",
        '{"text":NaN,USUAL}',
        '{"text":1e400,"x":"\\ud800",USUAL}',
        '{"text":Nan,USUAL}',
    ],
    "vllm": [
        '{"request_id":"generate-tokens-ID","choices":[{"index":0,"token_ids":[1,2],"finish_reason":null}]}',
        '{"choices":[{"token_ids":[1],"x":"é","finish_reason":"stop"},{"index":1}],"usage":{"prompt_tokens":3}}',
        '{"choices":[],"usage":{"completion_tokens":9},"routing_data":{"a":[1]},"y":1}',
        '{"error":{"message":"in /usr/lib/b.py","code":500}}',
        '{"choices":[{"index":"x","token_ids":7,"finish_reason":9}],"logprobs":[NaN,-Infinity]}',
        '{"choices":[{"index":0,"token_ids":[1,2]}],"x":"\\ud800"}',
        '{"choices":{"index":0},"usage":[1,2,3]}',
        '"a text"',
    ],
    "relayed": [
        '{"id":"chatcmpl-ID","choices":[{"delta":{"content":"hé"},"finish_reason":null}]}',
        '{"choices":[{"text":"a","finish_reason":"stop"},{"delta":{"role":"x"}}],"usage":{"output_tokens":4}}',
        '{"type":"response.completed","response":{"usage":{"input_tokens":5},"x":[1,2]}}',
        '{"error":{"message":"in /usr/lib/b.py","code":500}}',
        "no JSON at all, but long enough",
    ],
}
FRAMES = (
    b"data: %b\n\n",
    b"data:%b\n\n",
    b"event: x\ndata: %b\n\n",
    b"data: %b\r\n\r\n",
    b": %b\n\n",
    b"data: %b\n: y\n\n",
)


@contextmanager
def small_steps(size: int) -> Iterator[None]:
    with (
        mock.patch.object(json_windows, "WINDOW", max(size, 64)),
        mock.patch.object(large_event, "STEP", size),
        mock.patch.object(large_event, "_LINES", 2),
    ):
        yield


def result(
    kind: str, parts: tuple[bytes, ...], large_from: int | None, ids: Ids, method: str = "reader"
) -> Any:
    format = FORMATS[kind]
    reader: Any = getattr(format, method)(format.parse(BODY[kind], []), View(), ids, HEAD)
    if large_from is not None:
        reader._scanner._large_from = large_from
    out: list[bytes] = []
    try:
        for part in parts:
            out.append(reader.feed(part))
            out.extend(remaining(reader))
        out.append(reader.finish())
        out.extend(remaining(reader))
        how: Any = "complete"
    except GatewayError as error:
        how = type(error)
        out.append(reader.fail(error))
    return b"".join(out), reader.facts, how


def remaining(reader: Reader) -> Iterator[bytes]:
    while (steps := reader.facts.steps) is not None:
        reader.facts.steps = None
        for part in steps:
            yield part or b""


def spelled(event: str) -> bytes:
    named = event.replace("USUAL", _USUAL).replace("FAILED", _FAILED)
    return named.replace("ID", PRIVATE.dispatch[0]).encode()


def framed(frame: bytes, event: str) -> bytes:
    return frame % spelled(event)


streams = st.sampled_from(sorted(FORMATS)).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.lists(
            st.builds(framed, st.sampled_from(FRAMES), st.sampled_from(EVENTS[kind])), min_size=1, max_size=4
        ).map(lambda events: b"".join((*events, b"data: [DONE]\n\n"))),
    )
)


@settings(max_examples=150)
@given(streams, st.data(), st.sampled_from([16, 40, 200]), st.sampled_from([3, 16, 100]))
def test_large_event_is_relayed_like_any_other(
    stream: tuple[str, bytes], data: st.DataObject, large_from: int, step: int
) -> None:
    kind, complete = stream
    ids = data.draw(st.sampled_from([PRIVATE, same("a")]))
    parts = data.draw(splits(complete))
    with small_steps(step):
        in_steps = result(kind, parts, large_from, ids)
    assert in_steps == result(kind, parts, None, ids)


@settings(max_examples=100)
@given(st.sampled_from(["sglang", "vllm"]), st.data(), st.sampled_from([16, 100]))
def test_broken_large_event_is_as_broken_as_any_other(kind: str, data: st.DataObject, step: int) -> None:
    event = data.draw(damaged(spelled(data.draw(st.sampled_from(EVENTS[kind])))))
    if b"\n" in event or b"\r" in event or event.endswith(b"[DONE]"):
        return
    parts = (b"data: ", event, b"\n\n", b"data: [DONE]\n\n")
    with small_steps(step):
        in_steps = result(kind, parts, 8, PRIVATE)
    at_once = result(kind, parts, None, PRIVATE)
    if in_steps[2] != at_once[2] and kind == "vllm":
        assert b"\\u" in event  # half a pair of surrogates, of which a large event may have none
        return
    # In other words, maybe: of a broken list, say, that it is no object.
    assert in_steps[1:] == at_once[1:]
    assert in_steps[0] == at_once[0] or in_steps[2] is UpstreamMalformed


@pytest.mark.parametrize("kind", FORMATS)
def test_stream_that_breaks_off_inside_a_large_event_is_incomplete(kind: str) -> None:
    out, _, how = result(kind, (b"data: {", b'"x":' + b"1" * 100, b"\n"), 32, PRIVATE)
    assert how is UpstreamIncomplete and b"111" not in out


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_large_event_that_is_nested_too_deeply_is_malformed(kind: str) -> None:
    assert result(kind, (b'data: {"x":' + b"[" * 100_000, b"\n\n"), 32, PRIVATE)[2] is UpstreamMalformed


def test_values_too_long_to_be_read_are_replaced() -> None:
    """A value of the same kind that is not empty replaces them, so that they still count as present."""
    text = json.dumps({"a": "x" * 50, "b": [1] * 50, "c": {"d": "y" * 50, "e": 7}, "f": {"g": "z" * 50}})
    shape: Any = {"a": None, "b": None, "c": {"d": None, "e": None}, "f": None, "i": None}
    with small_steps(16), mock.patch.object(large_event, "SUMMARY_LIMIT", 40):
        found = run_steps(large_event.summarize(text.encode(), (0, len(text)), shape))
    assert json.loads(found.text) == {"a": "+", "b": [0], "c": {"d": "+", "e": 7}, "f": {"+": 0}}


def test_scanner_that_was_not_asked_puts_every_event_together() -> None:
    scanner = EventScanner(limit=1000)
    assert scanner.feed(b"data: " + b"x" * 500) == []
    ((event, data),) = scanner.feed(b"y\n\n")
    assert (len(event), data, scanner.large) == (509, b"x" * 500 + b"y", None)
