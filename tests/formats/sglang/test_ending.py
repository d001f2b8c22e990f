"""The ending of a reply is the same for every reader."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import GatewayError, InvalidRequest, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Ending, Headers, ReplyHead
from gateway.formats.passthrough import PassthroughReader
from tests.formats.outcomes import rows
from tests.formats.sglang.outcomes import OUTCOMES
from tests.formats.sglang.support import FORMAT, document, event, parsed, recorded, run, same
from tests.formats.support import DONE, EVENTS, HEX, JSON, View, compact, lines, recorded_ending

KINDS = ("generate", "control", "elsewhere")
STREAM: dict[str, Any] = {"input_ids": [1], "stream": True}
UNARY: dict[str, Any] = {"input_ids": [1]}
TWO: dict[str, Any] = {"input_ids": [1], "stream": True, "sampling_params": {"n": 2}}
HTML: Headers = [(b"content-type", b"text/html")]
ZIPPED: Headers = [*JSON, (b"content-encoding", b"gzip")]

CLIENT = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
ERROR = b'data: {"error":{"message":"m","type":"t","code":400,"retryable":false}}\n\n'
COMPLETE = event(1) + event(2, "stop") + DONE


def abort(status: int) -> dict[str, Any]:
    return {"type": "abort", "message": "m", "status_code": status}


INCOMPLETE, MALFORMED = UpstreamIncomplete, UpstreamMalformed

#: A stream of one sample: body, ending, error of the reader.
STREAMS: dict[str, tuple[bytes, Ending, type[GatewayError] | None]] = {
    "stop": (COMPLETE, Ending.STOP, None),
    "another reason": (event(2, "tool") + DONE, Ending.OTHER, None),
    "client abort": (event(2, CLIENT) + DONE, Ending.CLIENT_ABORT, None),
    "engine abort 500": (event(0, abort(500)) + DONE, Ending.ENGINE_ABORT, None),
    "error event": (ERROR + DONE, Ending.ERROR_EVENT, None),
    "done without a terminal": (event(1) + DONE, Ending.INCOMPLETE, INCOMPLETE),
    "done alone": (DONE, Ending.INCOMPLETE, INCOMPLETE),
    "end without a terminal": (event(1), Ending.INCOMPLETE, INCOMPLETE),
    "end inside the last event": (event(1) + event(2, "stop")[:-2], Ending.INCOMPLETE, INCOMPLETE),
    "comment alone": (b": only a comment\n\n", Ending.INCOMPLETE, INCOMPLETE),
    "end without done": (event(2, "stop"), Ending.STOP, None),
    "rubbish after the terminal": (event(2, "stop") + b"data: {\n\n" + DONE, Ending.STOP, None),
    "rubbish after done": (COMPLETE + b"data: {\n\n\xff", Ending.STOP, None),
    "malformed JSON": (event(1) + b"data: {\n\n", Ending.MALFORMED, MALFORMED),
    "an event that is no object": (b"data: 5\n\n", Ending.MALFORMED, MALFORMED),
    "no UTF-8": (b'data: {"text":"\xff"}\n\n', Ending.MALFORMED, MALFORMED),
    "routing data that is none": (b'data: {"routing_data":1}\n\n', Ending.MALFORMED, MALFORMED),
    "a document": (compact(document(2, "stop")), Ending.INCOMPLETE, INCOMPLETE),
    "nothing": (b"", Ending.INCOMPLETE, INCOMPLETE),
}
REFUSED = event(0, abort(503), index=0) + DONE

#: Other replies: request, status, headers, body, ending, error of the reader.
Row = tuple[dict[str, Any], int, Headers, bytes, Ending, type[GatewayError] | None]
TABLE: dict[str, Row] = {
    **{f"stream: {name}": (STREAM, 200, EVENTS, *row) for name, row in STREAMS.items()},
    "one sample of two": (TWO, 200, EVENTS, event(1, "stop", index=0) + DONE, Ending.INCOMPLETE, INCOMPLETE),
    "refused sample of two": (TWO, 200, EVENTS, REFUSED, Ending.INCOMPLETE, INCOMPLETE),
    "wrong content type": (STREAM, 200, HTML, b"<html>", Ending.MALFORMED, MALFORMED),
    "document for a stream": (STREAM, 200, JSON, compact(document(2, "stop")), Ending.STOP, None),
    "engine abort": (UNARY, 200, JSON, compact(document(0, abort(503))), Ending.ENGINE_ABORT, None),
    "empty document": (UNARY, 200, JSON, b"", Ending.MALFORMED, MALFORMED),
    "document cut short": (UNARY, 200, JSON, b'{"text":"a', Ending.MALFORMED, MALFORMED),
    "error document in a 200": (UNARY, 200, JSON, b'{"error":"x"}', Ending.ERROR_EVENT, None),
    "encoded": (UNARY, 200, ZIPPED, b"\x1f\x8b", Ending.OPAQUE, None),
    "no content": (UNARY, 204, [], b"", Ending.OPAQUE, None),
    "error object": (UNARY, 400, JSON, b'{"error":{"message":"m"}}', Ending.ERROR_STATUS, None),
    "plain text": (UNARY, 500, [], b"Internal Server Error", Ending.ERROR_STATUS, None),
}


@pytest.mark.parametrize("kind", ["reader", "join"])
@pytest.mark.parametrize("name", TABLE)
def test_ending_is_what_the_bytes_tell(name: str, kind: str) -> None:
    """The relay reader and the join reader agree."""
    request, status, headers, body, ending, failure = TABLE[name]
    make = getattr(FORMAT, kind)
    reader = make(parsed(request), View(), same(HEX), ReplyHead(status, headers))
    outcome = run(reader, [body])
    assert recorded_ending(reader, outcome.error) is ending
    assert type(outcome.error) is (failure or type(None))


@pytest.mark.parametrize("name", recorded("generate"))
def test_exchange_recorded_has_the_outcome_in_the_table(name: str) -> None:
    record, outcome = recorded("generate")[name], OUTCOMES[name].outcome
    body = record.get("request_body", "").encode()
    if outcome == "another method":
        assert record["method"] not in ("POST", "PUT")
    elif outcome == "refused":
        with pytest.raises(InvalidRequest):
            parsed(body)
    elif outcome == "unanswered":
        assert "status" not in record
    else:
        request = parsed(body, lines(record["request_headers"]))
        head = ReplyHead(record["status"], lines(record["headers"]))
        reader = FORMAT.reader(request, View(), same(*(request.ids or (HEX,))), head)
        answer = run(reader, [record.get("body", "").encode()])
        assert str(recorded_ending(reader, answer.error)) == outcome


@pytest.mark.parametrize("name", [*recorded("control"), *recorded("elsewhere")])
def test_exchange_recorded_on_another_route_has_the_ending_of_a_reply_unread(name: str) -> None:
    record = {**recorded("control"), **recorded("elsewhere")}[name]
    if "status" not in record:
        assert OUTCOMES[name].outcome == "unanswered"
        return
    reader, body = PassthroughReader(record["status"]), record.get("body", "").encode()
    assert run(reader, [body]).given == body
    assert str(reader.facts.ending) == OUTCOMES[name].outcome


def test_table_of_outcomes_has_each_exchange_once_with_its_path_and_status() -> None:
    exchanges = [record for kind in KINDS for record in recorded(kind).values()]
    assert sorted((row.name, row.path, row.status) for row in rows("sglang")) == sorted(
        (record["name"], record["path"], str(record.get("status", "-"))) for record in exchanges
    )
    assert len(exchanges) == len(OUTCOMES) == 253
