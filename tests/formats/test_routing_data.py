"""The routing data of a router behind a worker leaves the event it came in, and becomes a fact."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import Reader, ReplyFacts
from gateway.formats.routing_data import extract, extract_from_event
from tests.formats.sglang import support as sglang
from tests.formats.vllm import support as vllm


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


#: The routing data beside one token of either dialect, and the end of the stream.
READERS: dict[str, Callable[[], Reader]] = {"sglang": sglang.reading, "vllm": vllm.reading}
TOKEN = {"sglang": b'"meta_info":{"completion_tokens":1}', "vllm": b'"choices":[{"token_ids":[1]}]'}
LAST = {"sglang": sglang.event(2, "stop"), "vllm": vllm.chunk([1], "stop")}
KINDS = pytest.mark.parametrize("kind", READERS)


def fed(kind: str, *documents: bytes) -> tuple[bytes, Reader]:
    """The bytes relayed of one event for each document, without the last event, and the reader."""
    reader = READERS[kind]()
    out = reader.feed(b"".join(b"data: %b\n\n" % document for document in documents) + LAST[kind])
    assert out.endswith(LAST[kind]) and reader.facts.tokens == 2
    return out.removesuffix(LAST[kind]), reader


@KINDS
@pytest.mark.parametrize(
    ("document", "remaining"),
    [
        (b'{%b,"routing_data":{"worker_id":7},"x":1.50}', b'{%b,"x":1.50}'),
        (b'{%b,\ndata: "routing_data":{"worker_id":7}}', b"{%b}"),
    ],
)
def test_routing_data_leaves_the_event_and_nothing_else_does(
    kind: str, document: bytes, remaining: bytes
) -> None:
    out, reader = fed(kind, document % TOKEN[kind])
    assert out.replace(b" ", b"") == (b"data: %b\n\n" % (remaining % TOKEN[kind])).replace(b" ", b"")
    assert reader.facts.routing_data == {"worker_id": 7}


@KINDS
def test_event_of_routing_data_alone_is_dropped_and_the_latest_is_the_fact(kind: str) -> None:
    notes = (
        b'{"routing_data":{"worker_id":1}}',
        b'{"routing_data":null}',
        b'{"routing_data":{"worker_id":7}}',
    )
    out, reader = fed(kind, *notes, b"{%b}" % TOKEN[kind])
    assert out == b"data: {%b}\n\n" % TOKEN[kind]
    assert reader.facts.routing_data == {"worker_id": 7}
