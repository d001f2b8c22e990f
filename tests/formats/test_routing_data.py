"""The routing data of a router behind a worker leaves the event it came in, and becomes a fact."""

from __future__ import annotations

import json

import pytest

from gateway.errors import UpstreamMalformed
from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ids, Reader, ReplyFacts, ReplyHead
from gateway.formats.passthrough import BUFFER_LIMIT
from gateway.formats.routing_data import LargeReply, extract, extract_from_event, extract_from_reply
from gateway.formats.sglang import FORMAT as SGLANG
from gateway.formats.trtllm import FORMAT as TRTLLM
from gateway.formats.vllm import FORMAT as VLLM
from tests.formats.dialects import BOTH, Dialect
from tests.formats.support import JSON, View


@pytest.mark.parametrize(
    ("document", "remaining", "fact"),
    [
        (b'{"routing_data":{"a":1},"x" : 1.50}', b'{"x" : 1.50}', {"a": 1}),
        (b'{"x":1,"routing_data":null}', b'{"x":1}', None),
        (b'{ "routing_data":{} }', b"", {}),
        (b'{"routing_data":5,"routing_data":{"a":2}}', b"", {"a": 2}),
        (b'{"routing_data":{"a":1},"x":0,"routing_data":null}', b'{"x":0}', None),
        (b'{"x":{"routing_data":5}}', b'{"x":{"routing_data":5}}', None),
        (b'{"x":"\\"routing_data\\":5"}', b'{"x":"\\"routing_data\\":5"}', None),
    ],
)
def test_note_is_the_last_member_of_that_name_and_nothing_else_changes(
    document: bytes, remaining: bytes, fact: object
) -> None:
    facts = ReplyFacts()
    assert extract(document, facts) == remaining
    assert facts == ReplyFacts(routing_data=fact)  # type: ignore[arg-type]  # a literal of the table


@pytest.mark.parametrize(
    "value", [b"5", b'"x"', b"[1]", b"true", b"{,}", b'{"a":NaN}', b"[" * 5000 + b"]" * 5000]
)
def test_note_that_is_no_object_is_malformed(value: bytes) -> None:
    with pytest.raises(UpstreamMalformed):
        extract(b'{"x":1,"routing_data":%b}' % value, ReplyFacts())


@pytest.mark.parametrize(
    ("event", "document", "remaining"),
    [
        (b'data: {"routing_data":{},"x":1}\n\n', b'{"routing_data":{},"x":1}', b'data: {"x":1}\n\n'),
        (
            b'id: 7\r\ndata: {"routing_data":{},"x":1}\r\n\r\n',
            b'{"routing_data":{},"x":1}',
            b'id: 7\r\ndata: {"x":1}\r\n\r\n',
        ),
        (
            b'data: {"x":1,\ndata: "y":2,\ndata: "routing_data":{}}\n\n',
            b'{"x":1,\n"y":2,\n"routing_data":{}}',
            b'data: {"x":1,"y":2}\n\n',
        ),
        (b'data: {"routing_data":{}}\n\n', b'{"routing_data":{}}', b""),
        (b'data: {"a":["routing_data"]}\n\n', b'{"a":["routing_data"]}', b'data: {"a":["routing_data"]}\n\n'),
    ],
)
def test_event_without_its_note_is_still_an_event(event: bytes, document: bytes, remaining: bytes) -> None:
    """Data over several lines becomes one line: a line end between values is no part of any."""
    found, rest = extract_from_event(event, document, ReplyFacts())
    assert found == remaining
    assert bool(rest) is bool(remaining)


NOTE = b'"routing_data":{"worker_id":%b}'


@BOTH
def test_routing_data_leaves_the_stream_and_the_latest_is_the_fact(dialect: Dialect) -> None:
    """An event of routing data alone is dropped."""
    first, second, last = dialect.life
    reader = dialect.reading()
    named = (
        b"data: {%b}\n\n" % NOTE % b"1",
        first.replace(b"{", b"{%b," % NOTE % b"2", 1),
        second.replace(b"{", b"{\ndata: %b,\ndata: " % NOTE % b"7", 1),
        b'data: {"routing_data":null}\n\n',
    )
    assert reader.feed(b"".join((*named, last))) == b"".join(dialect.life)
    assert (reader.facts.routing_data, reader.facts.tokens) == ({"worker_id": 7}, 3)


FORMATS: dict[str, AnyFormat] = {format.name: format for format in (SGLANG, VLLM, TRTLLM)}
#: A unary reply of each format.
REPLIES = {
    "sglang": b'{"text":"a","output_ids":[1],"meta_info":{"finish_reason":{"type":"stop"}}}',
    "vllm": b'{"choices":[{"index":0,"finish_reason":"stop","token_ids":[1]}]}',
    "trtllm": b'{"choices":[{"index":0,"finish_reason":"stop","token_ids":[1]}],"usage":{}}',
}
REQUESTS: dict[str, dict[str, object]] = {
    "sglang": {"input_ids": [1]},
    "vllm": {"token_ids": [1], "sampling_params": {}},
    "trtllm": {"prompt": [1], "detokenize": False},
}


def unary(name: str) -> Reader:
    """The reader of a unary reply of the format."""
    format = FORMATS[name]
    request = format.parse(json.dumps({"model": "m", **REQUESTS[name]}).encode(), JSON)
    return format.reader(request, View(), Ids(("a",), ("a",)), ReplyHead(200, JSON))


def outputs(reader: Reader, reply: bytes, size: int) -> bytes:
    pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
    return b"".join(map(reader.feed, pieces)) + reader.finish()


@pytest.mark.parametrize("name", REPLIES)
def test_routing_data_leaves_a_unary_reply(name: str) -> None:
    """Its other bytes stay, and so does a member that is none of a router."""
    reply, reader = REPLIES[name], unary(name)
    assert outputs(reader, reply.replace(b"{", b'{"routing_data": {"worker_id":7} ,', 1), 9) == reply
    assert reader.facts.routing_data == {"worker_id": 7}
    quoted = b'{"quoted":"\\"routing_data\\":{}",'
    for kept in (reply.replace(b"{", b'{"routing_data":[7],', 1), reply.replace(b"{", quoted, 1)):
        reader = unary(name)
        assert outputs(reader, kept, 9) == kept
        assert reader.facts.routing_data is None


PAD = b'"pad":"%b",' % (b"x" * BUFFER_LIMIT)


@pytest.mark.parametrize("size", [4096, 4097, 4111, 1 << 21])
@pytest.mark.parametrize("name", REPLIES)
def test_routing_data_is_blanked_in_a_large_unary_reply(name: str, size: int) -> None:
    """At its beginning, in its middle and at its end, however it is cut; its length may have been sent."""
    plain = REPLIES[name].replace(b"{", b"{" + PAD, 1)
    noted = b'"routing_data" : {"worker_id":7,"a":"},{"}'
    places = (
        (plain.replace(b"{", b"{%b," % noted, 1), (7,)),
        (plain.replace(b",", b" , %b," % noted, 1), (7,)),
        (b"%b , %b}" % (plain[:-1], noted), (7,)),
        (plain, ()),
    )
    for reply, found in places:
        reader = unary(name)
        out = outputs(reader, reply, size)
        assert len(out) == len(reply) and json.loads(out) == json.loads(plain)
        assert reader.facts.routing_data == ({"worker_id": 7, "a": "},{"} if found else None)
        assert (reader.facts.finish_reasons, reader.facts.terminal) == (["stop"], True)


@pytest.mark.parametrize("at", range(30))
def test_name_that_is_cut_anywhere_is_found(at: int) -> None:
    facts = ReplyFacts()
    reply = LargeReply(facts)
    text = b'[{"x":[1,2], "routing_data":{"a":1}},{"y":",\\"routing_data\\":{","z":0}]'
    out = reply.feed(text[:at]) + reply.feed(text[at:]) + reply.feed(b"", final=True)
    assert json.loads(out) == [{"x": [1, 2]}, {"y": ',"routing_data":{', "z": 0}]
    assert (len(out), facts.routing_data) == (len(text), {"a": 1})


@pytest.mark.parametrize(
    "text", [b'["routing_data",1]', b'{"a":"routing_data"}', b'{"a":1,', b'{"a":1,"rout', b""]
)
def test_reply_without_the_member_is_passed_on_as_it_is(text: bytes) -> None:
    for at in range(len(text) + 1):
        reply = LargeReply(ReplyFacts())
        assert reply.feed(text[:at]) + reply.feed(text[at:]) + reply.feed(b"", final=True) == text


def test_routing_data_leaves_streams_and_joins_of_tensorrt() -> None:
    format = FORMATS["trtllm"]
    request = format.parse(json.dumps({"model": "m", "stream": True, **REQUESTS["trtllm"]}).encode(), JSON)
    head = ReplyHead(200, [(b"content-type", b"text/event-stream")])
    event = b'data: {"id":"a","choices":[{"index":0,"token_ids":[1],"finish_reason":"stop"}]}\n\n'
    stream = b'data: {"routing_data":{"a":1}}\n\n' + event.replace(b"{", b'{"routing_data":{"a":2},', 1)
    for kind in ("reader", "join"):
        reader = getattr(format, kind)(request, View(), Ids(("a",), ("a",)), head)
        out = reader.feed(stream + b"data: [DONE]\n\n") + reader.finish()
        assert b"routing_data" not in out and b'"token_ids":' in out
        assert reader.facts.routing_data == {"a": 2}
    assert out.startswith(b"{")


@pytest.mark.parametrize(
    ("reply", "remaining", "fact"),
    [
        (b'{"routing_data":{"a":1}}', b"{}", {"a": 1}),
        (b'[{"x":1,"routing_data":{"a":1}}, {"x":[2]}]', b'[{"x":1},{"x":[2]}]', {"a": 1}),
        (b'[{"routing_data":{"a":1}},{"routing_data":{"a":2}}]', b"[{},{}]", {"a": 2}),
        (b'["routing_data",7]', b'["routing_data",7]', None),
        (b'{"x":"routing_data"}', b'{"x":"routing_data"}', None),
        (b'["routing_data",', b'["routing_data",', None),
    ],
)
def test_unary_reply_is_one_object_or_a_list(reply: bytes, remaining: bytes, fact: object) -> None:
    facts = ReplyFacts()
    assert extract_from_reply(reply, facts) == remaining
    assert facts.routing_data == fact
