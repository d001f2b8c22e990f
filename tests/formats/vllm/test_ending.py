"""The outcome of every way in which a reply of the engine can end."""

from __future__ import annotations

import json

import pytest

from gateway.errors import GatewayError, UpstreamIncomplete
from gateway.formats.contract import Ending, Headers
from tests.formats.support import DONE, EVENTS, JSON, pieces, recorded_ending
from tests.formats.vllm.support import chunk, reading

HTML = [(b"content-type", b"text/html")]
PLAIN = [(b"content-type", b"text/plain; charset=utf-8")]
STOP = chunk([1], "stop")
FAILURE = b'data: {"error": {"message": "m", "type": "InternalServerError", "param": null, "code": 500}}\n\n'
REFUSAL = b'data: {"error": {"message": "m", "type": "BadRequestError", "param": null, "code": 400}}\n\n'


def envelope(kind: str, code: int) -> bytes:
    error = {"message": "m", "type": kind, "param": None, "code": code}
    return json.dumps({"error": error}, separators=(",", ":")).encode()


def unary(*reasons: str | None) -> bytes:
    return json.dumps(
        {"choices": [{"token_ids": [1], "finish_reason": reason} for reason in reasons]}
    ).encode()


#: what happened, status, headers, body, samples, outcome, error status
CASES: list[tuple[str, int, Headers, list[bytes], int, Ending, int | None]] = [
    ("stop", 200, EVENTS, [STOP, DONE], 1, Ending.STOP, None),
    ("finish reason of a failure", 200, EVENTS, [chunk([], "error"), DONE], 1, Ending.ENGINE_ABORT, 500),
    ("error event of a refusal", 200, EVENTS, [REFUSAL, DONE], 1, Ending.ERROR_EVENT, 400),
    ("error event without a code", 200, EVENTS, [b'data: {"error":"m"}\n\n'], 1, Ending.ERROR_EVENT, 500),
    ("done without a terminal", 200, EVENTS, [chunk([1]), DONE], 1, Ending.INCOMPLETE, None),
    ("one of two samples", 200, EVENTS, [STOP, DONE], 2, Ending.INCOMPLETE, None),
    ("end without done", 200, EVENTS, [STOP], 1, Ending.STOP, None),
    ("end in silence", 200, EVENTS, [chunk([1])], 1, Ending.INCOMPLETE, None),
    ("end inside an event", 200, EVENTS, [chunk([1]), b"data: {"], 1, Ending.INCOMPLETE, None),
    ("bytes after done", 200, EVENTS, [STOP, DONE, b"data: {\n\n"], 1, Ending.STOP, None),
    ("nonsense after the terminal", 200, EVENTS, [STOP, b"data: {\n\n", DONE], 1, Ending.STOP, None),
    ("malformed JSON", 200, EVENTS, [b"data: {\n\n"], 1, Ending.MALFORMED, None),
    ("JSON where events should be", 200, EVENTS, [unary("stop")], 1, Ending.INCOMPLETE, None),
    ("empty stream", 200, EVENTS, [], 1, Ending.INCOMPLETE, None),
    ("unary stop", 200, JSON, [unary("stop")], 1, Ending.STOP, None),
    ("unary without choices", 200, JSON, [b"{}"], 1, Ending.OTHER, None),
    ("unary error in a 200", 200, JSON, [envelope("BadRequestError", 400)], 1, Ending.ERROR_EVENT, 400),
    ("unary failure as a finish", 200, JSON, [unary("error")], 1, Ending.ENGINE_ABORT, 500),
    ("unary malformed", 200, JSON, [b'{"choices":'], 1, Ending.MALFORMED, None),
    ("unary long and broken off", 200, JSON, [b'{"a":"' + b"x" * 2_000_000], 1, Ending.INCOMPLETE, None),
    ("unary long and no object", 200, JSON, [b"x" * 2_000_000], 1, Ending.MALFORMED, None),
    ("wrong content type", 200, HTML, [b"<html>"], 1, Ending.OPAQUE, None),
    ("encoded", 200, [*EVENTS, (b"content-encoding", b"gzip")], [b"\x1f\x8b"], 1, Ending.OPAQUE, None),
    ("no content", 204, [], [], 1, Ending.OPAQUE, None),
    ("one spelling of 400", 400, JSON, [envelope("Bad Request", 400)], 1, Ending.ERROR_STATUS, None),
    ("plain 500", 500, PLAIN, [b"Internal Server Error"], 1, Ending.ERROR_STATUS, None),
    ("events with a 500", 500, EVENTS, [FAILURE, DONE], 1, Ending.ERROR_STATUS, None),
]


@pytest.mark.parametrize(
    ("status", "headers", "body", "samples", "ending", "error"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
@pytest.mark.parametrize("seed", [None, 1])
def test_reply_has_its_outcome_however_it_is_cut(
    status: int,
    headers: Headers,
    body: list[bytes],
    samples: int,
    ending: Ending,
    error: int | None,
    seed: int | None,
) -> None:
    reader = reading(status=status, headers=headers, n=samples)
    complete = b"".join(body)
    parts = pieces(complete, seed if len(complete) < 10_000 else 1)
    failure: GatewayError | None = None
    try:
        for part in parts:
            reader.feed(part)
        reader.finish()
    except GatewayError as caught:
        failure = caught
        reader.fail(failure)
    assert (recorded_ending(reader, failure), reader.facts.error_status) == (ending, error)


@pytest.mark.parametrize(
    ("headers", "body", "ending"),
    [
        (EVENTS, chunk([1]), Ending.INCOMPLETE),
        (EVENTS, STOP, Ending.INCOMPLETE),
        (EVENTS, STOP + DONE, Ending.STOP),
        (JSON, b"{", Ending.INCOMPLETE),
        (HTML, b"<", Ending.INCOMPLETE),
    ],
)
def test_reply_whose_connection_breaks_is_incomplete_unless_it_had_ended(
    headers: Headers, body: bytes, ending: Ending
) -> None:
    reader = reading(headers=headers)
    reader.feed(body)
    lost = UpstreamIncomplete("lost")
    reader.fail(lost)
    assert recorded_ending(reader, lost) == ending
