"""The ending of a reply is what its bytes tell, and every reader finds the same."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Ending, Headers
from gateway.testing.drive import drive
from tests.formats.dialects import BOTH, DIALECTS, Dialect
from tests.formats.sglang.support import document, event
from tests.formats.support import DONE, EVENTS, HTML, JSON, ZIPPED, compact, recorded_ending
from tests.formats.vllm.support import chunk

FAILURES = {Ending.INCOMPLETE: UpstreamIncomplete, Ending.MALFORMED: UpstreamMalformed}
LOST = UpstreamIncomplete("lost")
Reported = tuple[bytes, Ending, int | None]


def error(code: Any) -> bytes:
    return b"data: %b\n\n" % compact({"error": {"message": "m", "type": "t", "code": code}})


def streams(dialect: Dialect) -> dict[str, Reported]:
    """Streams of one sample: bytes, ending, status of the error."""
    first, _, last = dialect.life
    return {
        "stop": (first + last + DONE, Ending.STOP, None),
        "another reason": (dialect.event(1, "tool") + DONE, Ending.OTHER, None),
        "refusal": (error(400) + DONE, Ending.ERROR_EVENT, 400),
        "failure": (first + error(503) + DONE, Ending.ERROR_EVENT, 503),
        "status that is no number": (error("503"), Ending.ERROR_EVENT, 500),
        "status that is no error": (error(7), Ending.ERROR_EVENT, 500),
        "error without a status": (b'data: {"error":{"message":"m"}}\n\n', Ending.ERROR_EVENT, 500),
        "error of words": (b'data: {"error":"some words"}\n\n', Ending.ERROR_EVENT, 500),
        "error that is false": (b'data: {"error":false}\n\n', Ending.ERROR_EVENT, 500),
        "error that is null": (last.replace(b"{", b'{"error":null,', 1), Ending.STOP, None),
        "done without a terminal": (first + DONE, Ending.INCOMPLETE, None),
        "done alone": (DONE, Ending.INCOMPLETE, None),
        "end without a terminal": (first, Ending.INCOMPLETE, None),
        "end inside an event": (first + b"data: {", Ending.INCOMPLETE, None),
        "comment alone": (b": only a comment\n\n", Ending.INCOMPLETE, None),
        "a document": (compact(document(2, "stop")), Ending.INCOMPLETE, None),
        "nothing": (b"", Ending.INCOMPLETE, None),
        "end without done": (last, Ending.STOP, None),
        "rubbish after the terminal": (last + b"data: {\n\n" + DONE, Ending.STOP, None),
        "rubbish after done": (last + DONE + first + b"data: {\n\n\xff", Ending.STOP, None),
        "malformed JSON": (first + b"data: {\n\n", Ending.MALFORMED, None),
        "a number": (b"data: 5\n\n", Ending.MALFORMED, None),
        "a list": (b"data: []\n\n", Ending.MALFORMED, None),
        "half of done": (b"data: [DONE\n\n", Ending.MALFORMED, None),
        "no UTF-8": (b'data: {"text":"\xff"}\n\n', Ending.MALFORMED, None),
        "a deep list": (b"data: %b\n\n" % (b"[" * 100_000), Ending.MALFORMED, None),
        "routing data that is none": (b'data: {"routing_data":1}\n\n', Ending.MALFORMED, None),
    }


def abort(status: int | None) -> dict[str, Any]:
    return {"type": "abort", "message": "m", "status_code": status, "err_type": None}


def unary(*reasons: str) -> bytes:
    return compact({"choices": [{"token_ids": [1], "finish_reason": reason} for reason in reasons]})


ENVELOPE = b'{"error":{"message":"m","type":"Bad Request","param":null,"code":400}}'
STREAM: dict[str, Any] = {}
UNARY: dict[str, Any] = {"stream": False}
TWO: dict[str, Any] = {"samples": 2}

#: What only one engine sends: how it was asked, status, headers, bytes, ending, status of the error.
OWN: dict[str, dict[str, tuple[dict[str, Any], int, Headers, bytes, Ending, int | None]]] = {
    "sglang": {
        "client abort": (STREAM, 200, EVENTS, event(2, abort(None)) + DONE, Ending.CLIENT_ABORT, None),
        "engine abort": (STREAM, 200, EVENTS, event(0, abort(500)) + DONE, Ending.ENGINE_ABORT, 500),
        "last event not closed": (STREAM, 200, EVENTS, event(2, "stop")[:-2], Ending.INCOMPLETE, None),
        "not a number": (STREAM, 200, EVENTS, b'data: {"x":NaN}\n\n' + event(2, "stop"), Ending.STOP, None),
        "one of two": (TWO, 200, EVENTS, event(1, "stop", index=0) + DONE, Ending.INCOMPLETE, None),
        "refused one of two": (TWO, 200, EVENTS, event(0, abort(503), index=0), Ending.INCOMPLETE, 503),
        "events not asked for": (UNARY, 200, EVENTS, event(2, "stop"), Ending.STOP, None),
        "events of no type": (STREAM, 200, [], event(2, "stop"), Ending.STOP, None),
        "wrong type": (STREAM, 200, HTML, b"<html>", Ending.MALFORMED, None),
        "document for a stream": (STREAM, 200, JSON, compact(document(2, "stop")), Ending.STOP, None),
        "document of no type": (UNARY, 200, [], compact(document(2, "stop")), Ending.STOP, None),
        "document of another type": (UNARY, 200, HTML, compact(document(2, "stop")), Ending.STOP, None),
        "unary abort": (UNARY, 200, JSON, compact(document(0, abort(503))), Ending.ENGINE_ABORT, 503),
        "empty document": (UNARY, 200, JSON, b"", Ending.MALFORMED, None),
        "document cut short": (UNARY, 200, JSON, b'{"text":"a', Ending.MALFORMED, None),
        "error in a 200": (UNARY, 200, JSON, b'{"error":"x"}', Ending.ERROR_EVENT, 500),
        "error object": (UNARY, 400, JSON, b'{"error":{"message":"m"}}', Ending.ERROR_STATUS, None),
        "refused stream": (STREAM, 400, JSON, b"{}", Ending.ERROR_STATUS, None),
    },
    "vllm": {
        "client abort": (STREAM, 200, EVENTS, chunk([], "abort") + DONE, Ending.CLIENT_ABORT, None),
        "failure as a finish": (STREAM, 200, EVENTS, chunk([], "error") + DONE, Ending.ENGINE_ABORT, 500),
        "last event not closed": (STREAM, 200, EVENTS, chunk([1], "stop")[:-2], Ending.STOP, None),
        "not a number": (STREAM, 200, EVENTS, b'data: {"x":NaN}\n\n' + chunk([1], "stop"), Ending.STOP, None),
        "one of two": (TWO, 200, EVENTS, chunk([1], "stop") + DONE, Ending.INCOMPLETE, None),
        "unary": (UNARY, 200, JSON, unary("stop"), Ending.STOP, None),
        "unary without choices": (UNARY, 200, JSON, b"{}", Ending.OTHER, None),
        "error in a 200": (UNARY, 200, JSON, ENVELOPE, Ending.ERROR_EVENT, 400),
        "unary failure": (UNARY, 200, JSON, unary("stop", "error"), Ending.ENGINE_ABORT, 500),
        "unary malformed": (UNARY, 200, JSON, b'{"choices":', Ending.MALFORMED, None),
        "long and broken off": (UNARY, 200, JSON, b'{"a":"' + b"x" * 2_000_000, Ending.INCOMPLETE, None),
        "long and no object": (UNARY, 200, JSON, b"x" * 2_000_000, Ending.MALFORMED, None),
        "wrong type": (STREAM, 200, HTML, b"<html>", Ending.OPAQUE, None),
        "error object": (UNARY, 400, JSON, ENVELOPE, Ending.ERROR_STATUS, None),
        "events with a 500": (STREAM, 500, EVENTS, error(500) + DONE, Ending.ERROR_STATUS, None),
    },
}
#: What any engine or a server before it may send.
ANY: dict[str, tuple[dict[str, Any], int, Headers, bytes, Ending, int | None]] = {
    "encoded": (UNARY, 200, [*JSON, *ZIPPED], b"\x1f\x8b", Ending.OPAQUE, None),
    "encoded events": (STREAM, 200, [*EVENTS, *ZIPPED], b"\x1f\x8b", Ending.OPAQUE, None),
    "no content": (UNARY, 204, [], b"", Ending.OPAQUE, None),
    "plain text": (UNARY, 500, [], b"Internal Server Error", Ending.ERROR_STATUS, None),
}
TABLE = [
    pytest.param(name, *row, id=f"{name}: {what}")
    for name, dialect in DIALECTS.items()
    for what, row in {
        **{
            f"stream, {what}": (STREAM, 200, EVENTS, *reported) for what, reported in streams(dialect).items()
        },
        **OWN[name],
        **ANY,
    }.items()
]


@pytest.mark.parametrize("kind", ["reader", "join"])
@pytest.mark.parametrize(("name", "asked", "status", "headers", "body", "ending", "error_status"), TABLE)
def test_ending_is_what_the_bytes_tell(  # noqa: PLR0913 - a row of the table
    name: str,
    asked: dict[str, Any],
    status: int,
    headers: Headers,
    body: bytes,
    ending: Ending,
    error_status: int | None,
    kind: str,
) -> None:
    outcome = drive(DIALECTS[name].reading(kind, status=status, headers=headers, **asked), [body])
    assert (recorded_ending(outcome.facts, outcome.failure), outcome.facts.error_status) == (
        ending,
        error_status,
    )
    assert outcome.failure is FAILURES.get(ending)


@BOTH
@pytest.mark.parametrize(
    ("stream", "status", "headers", "streaming"),
    [
        (True, 200, EVENTS, True),
        (True, 200, [*EVENTS, *ZIPPED], True),
        (False, 200, JSON, False),
        (False, 200, [*JSON, *ZIPPED], False),
        (True, 400, JSON, False),
        (True, 500, EVENTS, False),
    ],
)
def test_stream_is_relayed_as_it_comes_and_any_other_reply_is_buffered(
    dialect: Dialect, stream: bool, status: int, headers: Headers, streaming: bool
) -> None:
    reader = dialect.reading(stream=stream, status=status, headers=headers)
    assert reader.streaming is streaming
    assert reader.feed(b": x\n\n") == (b": x\n\n" if streaming else b"")


@BOTH
@pytest.mark.parametrize("headers", [JSON, HTML])
def test_reply_whose_connection_breaks_is_incomplete(dialect: Dialect, headers: Headers) -> None:
    reader = dialect.reading(stream=False, headers=headers)
    reader.feed(b"{")
    assert reader.fail(LOST) == b""
    assert recorded_ending(reader.facts, LOST) is Ending.INCOMPLETE


@BOTH
def test_stream_whose_connection_breaks_ends_with_the_error_unless_done_was_received(
    dialect: Dialect,
) -> None:
    """After DONE only the last bytes of the framing are missing; before it, more might have come."""
    for kept in range(1, 4):
        reader = dialect.reading()
        reader.feed(b"".join(dialect.life[:kept]) + b"data: {")
        assert reader.fail(LOST) == dialect.in_band(LOST)
        assert recorded_ending(reader.facts, LOST) is Ending.INCOMPLETE
    stream = b"".join(dialect.life) + DONE
    reader = dialect.reading()
    assert reader.feed(stream) + reader.fail(LOST) == stream
    assert reader.fail(LOST) == b""
