"""Requests that are relayed to a route of any kind, and the readers of their replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamIncomplete
from gateway.formats.contract import Ending, Ids, Reader, ReplyHead
from gateway.formats.passthrough import BUFFER_LIMIT
from gateway.formats.relayed import RelayedFormat
from gateway.formats.relayed.apis import StreamApi, api_of_event
from gateway.formats.relayed.reader import reader
from gateway.formats.relayed.request import parse, project
from gateway.formats.sse import LARGE_EVENT_SIZE
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.drive import drive
from gateway.testing.model import ModelWorker
from tests.formats.support import LOOSE_JSON

JSON = (b"content-type", b"application/json")
FORMAT = RelayedFormat("/v1/embeddings", "a|b")
WORKER = ModelWorker(WorkerInfo("e", "a", True), b"/base", None)


@pytest.mark.parametrize(
    ("body", "headers", "model"),
    [
        (b'{"messages":[{"model":"inner"}],"model":"m"}', [JSON], "m"),
        (b'{"model":"m"}', [JSON, (b"x-model", b"other")], "m"),
        (b'{"model":null}', [JSON, (b"x-model", b"h")], "h"),
        (b'{"model":7}', [JSON], None),
        (b"--form-data", [(b"content-type", b"multipart/form-data"), (b"x-model", b" h ")], "h"),
        # As engines read it that use Python's json.
        (b'\xef\xbb\xbf{"model":"m","temperature":NaN}', [JSON], "m"),
        ('{"model":"m"}'.encode("utf-16"), [JSON], "m"),
        (b'{"model":"m","user":"\\ud800"}', [JSON], "m"),
        (b"[" * 100_000, [JSON], None),
        (b"", [(b"x-model", b"\xff")], None),
    ],
)
def test_model_is_that_of_the_body_or_else_of_the_header(
    body: bytes, headers: list[tuple[bytes, bytes]], model: str | None
) -> None:
    assert project(parse(body, headers)).model == model


HEADER = (b"x-request-id", b" head ")
#: What no header can hold.
NO_HEADERS = (b"", b"\xff", "é".encode(), b"x" * 2000)


@pytest.mark.parametrize(
    ("body", "headers", "id", "member"),
    [
        (b'{"rid":"r","request_id":"q"}', [JSON, HEADER], "r", "rid"),
        (b'{"request_id":"q"}', [JSON, HEADER], "head", None),
        (b'{"rid":["r"],"request_id":"q"}', [JSON], "q", "request_id"),
        (b'{"rid":null}', [HEADER], "head", None),
        (b'{"rid":"","rid":"\\u00e9"}', [JSON], "é", "rid"),
        (b'{"messages":[{"rid":"inner"}]}', [JSON], None, None),
        (b'{"rid":"r"', [JSON, HEADER], "head", None),
        *((b"{}", [(b"x-request-id", odd)], None, None) for odd in NO_HEADERS),
    ],
)
def test_id_is_found_where_an_engine_would_look_first(
    body: bytes, headers: list[tuple[bytes, bytes]], id: str | None, member: str | None
) -> None:
    projection = project(parse(body, headers))
    assert projection.ids == (() if id is None else (id,))
    assert projection.id_member == member
    assert projection.ids_usable is (id is None or id.isascii())


@given(st.binary(max_size=200), st.lists(st.tuples(st.sampled_from([JSON[0], b"x-model"]), st.binary())))
def test_any_request_is_forwarded_unchanged(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """The engine refuses an invalid body."""
    request = FORMAT.parse(body, headers)
    sent = FORMAT.upstream(request, WORKER, Ids(("p",), ("p",)))
    assert (sent.method, sent.target, sent.body) == (b"POST", b"/base/v1/embeddings", body)
    assert b"x-model" not in dict(sent.headers)


@pytest.mark.parametrize("named", [[], [(b"x-request-id", b"p")]])
def test_engine_gets_the_dispatch_id_in_the_header_always(named: list[tuple[bytes, bytes]]) -> None:
    """Also if the client named none: without an id the engine could not abort the request."""
    sent = FORMAT.upstream(FORMAT.parse(b"{}", [JSON, *named]), WORKER, Ids(("p",), ("q",)))
    assert sent.headers == [JSON, (b"x-request-id", b"q")]


def test_id_in_the_body_is_replaced_where_it_is_not_safe_and_nothing_else_is() -> None:
    body = b'{"rid" : "p","x":1e-7, "rid":"p","messages":[{"rid":"p"}]}'
    request = FORMAT.parse(body, [JSON])
    assert FORMAT.upstream(request, WORKER, Ids(("p",), ("p",))).body == body
    sent = FORMAT.upstream(request, WORKER, Ids(("p",), ("q",)))
    assert sent.body == b'{"rid" : "q","x":1e-7, "rid":"q","messages":[{"rid":"p"}]}'
    assert dict(sent.headers)[b"x-request-id"] == b"q"
    other = b'{"request_id":"p"}'
    assert FORMAT.upstream(FORMAT.parse(other, [JSON]), WORKER, Ids(("p",), ("q",))).body == other


@pytest.mark.parametrize(
    ("body", "marks"),
    [
        (b'{"n":1,"prompt":"a","use_beam_search":false}', ""),
        (b'{"n":null,"prompt":[ 1, 2]}', ""),
        (b'{"n":2}', "several_samples"),
        (b'{"n":1.0}', "several_samples"),
        (b'{"prompt":["a"]}', "several"),
        (b'{"use_beam_search":true}', "beam_search"),
        (b'{"n":3,"prompt":[[1]],"use_beam_search":true}', "several several_samples beam_search"),
    ],
)
def test_request_of_several_prompts_or_replies_is_recognised(body: bytes, marks: str) -> None:
    """In doubt it counts as several: such a request is ended by closing its connection."""
    request = parse(body, [JSON])
    found = {
        "several": not request.one_prompt,
        "several_samples": request.several_samples,
        "beam_search": request.beam_search,
    }
    assert " ".join(mark for mark, is_so in found.items() if is_so) == marks


def test_settings_are_checked() -> None:
    assert FORMAT.configured({"passthrough_engine_errors": "true"}).name == "relayed"
    for options in ({"passthrough_engine_errors": "maybe"}, {"other": "1"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            FORMAT.configured(options)


SAME, PRIVATE = Ids(("job",), ("job",)), Ids(('j"é',), ("f" * 32,))
DONE = b"data: [DONE]\n\n"


def read(
    status: int = 200, kind: str = "text/event-stream", ids: Ids = SAME, api: StreamApi | None = None
) -> Reader:
    return reader(ids, ReplyHead(status, [(b"content-type", kind.encode())]), passthrough=False, api=api)


def event(**members: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(members).encode()


def chunk(text: str | None = None, finish: str | None = None, id: str = "job") -> bytes:
    delta = {"role": "assistant"} if text is None else {"content": text}
    return event(id=f"chatcmpl-{id}", choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
CHAT = (chunk(), chunk("a"), chunk("b"), chunk("", "stop"), event(choices=[], usage=USAGE), DONE)
RESPONSES = (
    b"event: response.created\n" + event(type="response.created", response={"usage": None}),
    event(type="response.output_text.delta", delta="a"),
    event(type="response.completed", response={"usage": {"input_tokens": 2, "output_tokens": 9}}),
)


@pytest.mark.parametrize("events", [RESPONSES, (b": ping\n\n", b"event: x\ndata: y\n\n")])
def test_complete_events_are_relayed_at_once(events: tuple[bytes, ...]) -> None:
    it = read()
    assert it.streaming
    assert [it.feed(each) for each in events] == list(events)
    assert it.finish() == b""


def test_facts_are_those_the_stream_tells() -> None:
    facts = drive(read(), CHAT).facts
    assert (facts.prompt_tokens, facts.tokens, facts.cached_tokens) == (5, 3, 4)
    assert (facts.finish_reasons, facts.ending, facts.terminal) == (["stop"], Ending.STOP, True)
    facts = drive(read(), RESPONSES).facts
    assert (facts.prompt_tokens, facts.tokens, facts.ending) == (2, 9, Ending.OPAQUE)
    assert drive(read(), (event(choices=[{"token_ids": [1, 2, 3]}]), DONE)).facts.tokens == 3


def test_tokens_are_counted_as_they_come_and_only_grow() -> None:
    it = read()
    seen = [it.feed(each) and it.facts.tokens for each in CHAT[:-1]]
    assert seen == sorted(seen) and seen[:3] == [0, 1, 2]


@pytest.mark.parametrize("kept", range(len(CHAT) - 1))
def test_chat_stream_without_its_end_is_incomplete(kept: int) -> None:
    """The relayed events are followed by the dialect's in-band error."""
    outcome = drive(read(api=StreamApi.CHUNKS), CHAT[:kept])
    assert outcome.failure is UpstreamIncomplete
    assert outcome.out.startswith(b"".join(CHAT[:kept])) and outcome.out.endswith(DONE)
    assert b'{"error":{"message":' in outcome.out


def test_last_event_without_its_blank_line_is_the_last_if_it_is_complete() -> None:
    assert drive(read(), (b"data: x\n\ndata: y",)).failure is UpstreamIncomplete
    assert drive(read(), (*CHAT[:-1], b"data: [DONE]\n")).out == b"".join(CHAT[:-1]) + b"data: [DONE]\n"


def test_connection_that_breaks_after_the_end_loses_nothing() -> None:
    it = read()
    out = b"".join(it.feed(each) for each in CHAT)
    assert out + it.fail(UpstreamIncomplete("broke")) == b"".join(CHAT)
    assert it.facts.ending is Ending.STOP


MESSAGES = (
    event(type="message_start", message={"usage": {"input_tokens": 7, "output_tokens": 1}}),
    event(type="ping"),
    event(type="content_block_delta", delta={"type": "text_delta", "text": "a"}),
    event(type="content_block_delta", delta={"type": "text_delta", "text": "b"}),
    event(type="message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 5}),
    event(type="message_stop"),
)


def test_facts_of_messages_are_those_the_events_and_the_reply_tell() -> None:
    facts = drive(read(), MESSAGES).facts
    assert (facts.prompt_tokens, facts.tokens, facts.ending) == (7, 5, Ending.LENGTH)
    it = read()
    assert [it.feed(each) and it.facts.tokens for each in MESSAGES[:4]] == [1, 1, 2, 3]
    reply = {"type": "message", "stop_reason": "end_turn", "usage": {"input_tokens": 2, "output_tokens": 9}}
    facts = drive(read(kind="application/json"), (json.dumps(reply).encode(),)).facts
    assert (facts.prompt_tokens, facts.tokens, facts.ending) == (2, 9, Ending.STOP)


@pytest.mark.parametrize("api", StreamApi)
@pytest.mark.parametrize("events", [(), (event(type="ping"),), (b": x\n\n",)])
def test_stream_of_a_known_route_needs_its_last_event_whatever_it_had(
    api: StreamApi, events: tuple[bytes, ...]
) -> None:
    outcome = drive(read(api=api), events)
    assert outcome.failure is UpstreamIncomplete and b"error" in outcome.out


ERRORS: list[tuple[dict[str, Any], int]] = [
    *(({"error": {"message": "m", "code": code}}, status) for code, status in ((400, 400), (503, 503))),
    *(({"error": {"message": "m", "code": code}}, 500) for code in ("odd", None, 200)),
    ({"error": "text"}, 500),
    ({"type": "error", "error": {"type": "rate_limit_error", "message": "m"}}, 429),
    ({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, 503),
    ({"type": "error", "code": "rate_limit_exceeded", "message": "m"}, 429),
    ({"type": "error", "code": "server_error", "message": "m"}, 500),
    ({"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}}, 400),
    ({"type": "response.failed", "response": {"error": None}}, 500),
]


@pytest.mark.parametrize(("members", "status"), ERRORS)
def test_error_event_is_a_failed_reply_with_nothing_behind_it(members: dict[str, Any], status: int) -> None:
    first = chunk("a") if "error" in members and "type" not in members else RESPONSES[0]
    outcome = drive(read(), (first, event(**members)))
    assert (outcome.facts.error_status, outcome.facts.ending) == (status, Ending.ERROR_EVENT)
    assert (outcome.out, outcome.failure) == (first + event(**members), None)


ROUTED = {"routing_data": {"worker_id": 7}}


def test_routing_data_of_a_router_behind_the_worker_becomes_a_fact() -> None:
    """Of chunks, events of other APIs, unary replies and large events; what no router sends stays."""
    large = event(delta="x" * LARGE_EVENT_SIZE, **ROUTED)
    for added, left in (
        (event(choices=[], **ROUTED), event(choices=[])),
        (event(**ROUTED), b""),
        (event(type="message_stop", **ROUTED), event(type="message_stop")),
        (large, event(delta="x" * LARGE_EVENT_SIZE)),
    ):
        outcome = drive(
            read(), (event(x=1), *(added[at : at + 999_999] for at in range(0, len(added), 999_999)))
        )
        assert outcome.out.startswith(event(x=1) + left)
        assert outcome.facts.routing_data == {"worker_id": 7}
    unary = drive(read(kind="application/json"), (b'{"routing_data":{"worker_id":7},"id" : 1}',))
    assert (unary.out, unary.facts.routing_data) == (b'{"id" : 1}', {"worker_id": 7})
    rest = b'"id" : 1,"x":"%b"}' % (b"y" * BUFFER_LIMIT)
    long = drive(read(kind="application/json"), (b'{"routing_data":{"worker_id":7},' + rest,))
    assert (long.out, long.facts.routing_data) == (b"{" + b" " * 31 + rest, {"worker_id": 7})
    for kept in (event(routing_data=[1]), event(x={"routing_data": {}})):
        assert drive(read(), (kept,)).out == kept


def test_paths_of_a_servers_files_are_cut_from_its_own_errors() -> None:
    failed = event(error={"message": "at /usr/lib/x.py", "code": 500})
    assert b"/usr/lib" not in drive(read(), (failed,)).out
    assert b"/usr/lib" not in drive(read(500, "application/json"), (failed,)).out
    as_sent = reader(SAME, ReplyHead(500, []), passthrough=True)
    assert drive(as_sent, (failed,)).out == failed


def test_private_id_is_mapped_back_wherever_it_stands() -> None:
    body = json.dumps({"id": "chatcmpl-" + "f" * 32, "usage": USAGE}).encode()
    expected = body.replace(b"f" * 32, rb"j\"\u00e9")
    long = b'["' + b"x" * 1024 * 1024 + b'",' + body
    for pieces in ([body], [long], [long[place : place + 37] for place in range(0, len(long), 37)]):
        assert drive(read(kind="application/json", ids=PRIVATE), pieces).out.endswith(expected)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"\xff", b'{"usage":7,"choices":{}}', b'{"choices":[1]}']
)
def test_reply_that_cannot_be_read_is_passed_on(body: bytes) -> None:
    outcome = drive(read(kind="application/json"), (body,))
    assert (outcome.out, outcome.failure, outcome.facts.ending) == (body, None, Ending.OPAQUE)


@pytest.mark.parametrize("value", LOOSE_JSON)
@pytest.mark.parametrize("events", [CHAT, RESPONSES, MESSAGES])
def test_reply_that_only_pythons_json_reads_is_relayed_and_counted(
    events: tuple[bytes, ...], value: bytes
) -> None:
    """Its last event is recognised, and the data of a router behind the worker taken out."""
    api = api_of_event(json.loads(events[0].partition(b"data: ")[2]).get("type", "")) or StreamApi.CHUNKS
    loose = [each.replace(b"{", b'{"x":[%b],' % value, 1) for each in events]
    outcome, usual = drive(read(api=api), loose), drive(read(api=api), events)
    assert (outcome.out, outcome.failure, outcome.facts) == (b"".join(loose), None, usual.facts)
    unary = b'{"x":[%b],"usage":{"prompt_tokens":5,"completion_tokens":3}}' % value
    routed = unary.replace(b'"usage"', b'"routing_data":{"worker_id":7},"usage"')
    for reply in (unary, routed):
        outcome = drive(read(kind="application/json"), (reply,))
        assert (outcome.out, outcome.facts.tokens, outcome.facts.prompt_tokens) == (unary, 3, 5)


def test_usage_of_a_unary_reply_is_read() -> None:
    reply = {"choices": [{"finish_reason": "length"}, {"finish_reason": "stop"}], "usage": USAGE}
    facts = drive(read(kind="application/json"), (json.dumps(reply).encode(),)).facts
    assert (facts.tokens, facts.prompt_tokens, facts.ending) == (3, 5, Ending.OTHER)


@pytest.mark.parametrize(
    ("kind", "streaming"),
    [("application/json", False), ("text/plain", False), ("application/x-ndjson", True), ("audio/wav", True)],
)
def test_only_unary_replies_are_buffered(kind: str, streaming: bool) -> None:
    it = read(kind=kind)
    assert it.streaming is streaming
    assert it.feed(b"x") == (b"x" if streaming else b"")
