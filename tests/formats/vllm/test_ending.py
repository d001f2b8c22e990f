"""The outcome of every way in which a reply of the engine can end."""

from __future__ import annotations

import json

import pytest

from gateway.errors import GatewayError, UpstreamIncomplete
from gateway.formats.contract import Ending, Headers
from tests.formats.support import DONE, EVENTS, JSON, recorded_ending
from tests.formats.vllm.support import chunk, pieces, reading

HTML = [(b"content-type", b"text/html")]
PLAIN = [(b"content-type", b"text/plain; charset=utf-8")]
STOP = chunk([1], "stop")
ABORT_OF_1 = chunk([], "abort", index=1)
FAILURE = b'data: {"error": {"message": "m", "type": "InternalServerError", "param": null, "code": 500}}\n\n'
REFUSAL = b'data: {"error": {"message": "m", "type": "BadRequestError", "param": null, "code": 400}}\n\n'
MANY = [chunk([1], "stop"), chunk([1], "length", index=1), DONE]


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
    ("length", 200, EVENTS, [chunk([1], "length"), DONE], 1, Ending.LENGTH, None),
    ("repetition", 200, EVENTS, [chunk([1], "repetition"), DONE], 1, Ending.OTHER, None),
    ("samples of different ends", 200, EVENTS, MANY, 2, Ending.OTHER, None),
    ("abort call", 200, EVENTS, [chunk([1]), chunk([], "abort"), DONE], 1, Ending.CLIENT_ABORT, None),
    ("abort of some samples", 200, EVENTS, [STOP, ABORT_OF_1, DONE], 2, Ending.CLIENT_ABORT, None),
    ("finish reason of a failure", 200, EVENTS, [chunk([], "error"), DONE], 1, Ending.ENGINE_ABORT, 500),
    ("error event", 200, EVENTS, [chunk([1]), FAILURE, DONE], 1, Ending.ERROR_EVENT, 500),
    ("error event of a refusal", 200, EVENTS, [REFUSAL, DONE], 1, Ending.ERROR_EVENT, 400),
    ("error event without a code", 200, EVENTS, [b'data: {"error":"m"}\n\n'], 1, Ending.ERROR_EVENT, 500),
    ("done without a terminal", 200, EVENTS, [chunk([1]), DONE], 1, Ending.INCOMPLETE, None),
    ("done only", 200, EVENTS, [DONE], 1, Ending.INCOMPLETE, None),
    ("one of two samples", 200, EVENTS, [STOP, DONE], 2, Ending.INCOMPLETE, None),
    ("end without done", 200, EVENTS, [STOP], 1, Ending.STOP, None),
    ("end in silence", 200, EVENTS, [chunk([1])], 1, Ending.INCOMPLETE, None),
    ("end after a comment", 200, EVENTS, [chunk([1]), b": ping\n\n"], 1, Ending.INCOMPLETE, None),
    ("end inside an event", 200, EVENTS, [chunk([1]), b"data: {"], 1, Ending.INCOMPLETE, None),
    ("bytes after done", 200, EVENTS, [STOP, DONE, b"data: {\n\n"], 1, Ending.STOP, None),
    ("nonsense after the terminal", 200, EVENTS, [STOP, b"data: {\n\n", DONE], 1, Ending.STOP, None),
    ("malformed JSON", 200, EVENTS, [b"data: {\n\n"], 1, Ending.MALFORMED, None),
    ("no object", 200, EVENTS, [b"data: [1]\n\n"], 1, Ending.MALFORMED, None),
    ("not UTF-8", 200, EVENTS, [b'data: {"a":"\xff"}\n\n'], 1, Ending.MALFORMED, None),
    ("JSON where events should be", 200, EVENTS, [unary("stop")], 1, Ending.INCOMPLETE, None),
    ("empty stream", 200, EVENTS, [], 1, Ending.INCOMPLETE, None),
    ("unary stop", 200, JSON, [unary("stop")], 1, Ending.STOP, None),
    ("unary length", 200, JSON, [unary("length", "length")], 2, Ending.LENGTH, None),
    ("unary abort", 200, JSON, [unary("abort")], 1, Ending.CLIENT_ABORT, None),
    ("unary without choices", 200, JSON, [b"{}"], 1, Ending.OTHER, None),
    ("unary error in a 200", 200, JSON, [envelope("BadRequestError", 400)], 1, Ending.ERROR_EVENT, 400),
    ("unary failure as a finish", 200, JSON, [unary("error")], 1, Ending.ENGINE_ABORT, 500),
    ("unary malformed", 200, JSON, [b'{"choices":'], 1, Ending.MALFORMED, None),
    ("unary not UTF-8", 200, JSON, [b'{"a":"\xff"}'], 1, Ending.MALFORMED, None),
    ("unary empty", 200, JSON, [], 1, Ending.MALFORMED, None),
    ("unary long and broken off", 200, JSON, [b'{"a":"' + b"x" * 2_000_000], 1, Ending.INCOMPLETE, None),
    ("unary long and no object", 200, JSON, [b"x" * 2_000_000], 1, Ending.MALFORMED, None),
    ("wrong content type", 200, HTML, [b"<html>"], 1, Ending.OPAQUE, None),
    ("no content type", 200, [], [STOP, DONE], 1, Ending.OPAQUE, None),
    ("encoded", 200, [*EVENTS, (b"content-encoding", b"gzip")], [b"\x1f\x8b"], 1, Ending.OPAQUE, None),
    ("no content", 204, [], [], 1, Ending.OPAQUE, None),
    ("one spelling of 400", 400, JSON, [envelope("Bad Request", 400)], 1, Ending.ERROR_STATUS, None),
    ("error that is a text", 503, JSON, [b'{"error":"scaling"}'], 1, Ending.ERROR_STATUS, None),
    ("detail", 404, JSON, [b'{"detail":"Not Found"}'], 1, Ending.ERROR_STATUS, None),
    ("unauthorized", 401, JSON, [b'{"error":"Unauthorized"}'], 1, Ending.ERROR_STATUS, None),
    ("plain 500", 500, PLAIN, [b"Internal Server Error"], 1, Ending.ERROR_STATUS, None),
    ("empty 500", 500, [], [], 1, Ending.ERROR_STATUS, None),
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
    """One outcome for each reply that an engine, or a proxy in front of it, may send."""
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
    """The gateway calls ``fail`` and nothing else."""
    reader = reading(headers=headers)
    reader.feed(body)
    lost = UpstreamIncomplete("lost")
    reader.fail(lost)
    assert recorded_ending(reader, lost) == ending
