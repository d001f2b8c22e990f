"""The routing data of a router behind a worker leaves the event it came in, and becomes a fact."""

from __future__ import annotations

import pytest

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import ReplyFacts
from gateway.formats.routing_data import extract, extract_from_event
from tests.formats.dialects import BOTH, Dialect


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
