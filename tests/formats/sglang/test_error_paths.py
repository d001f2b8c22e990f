"""What a router behind the worker's URL says of its own choice: a fact, and no part of the payload."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import Reader
from tests.formats.sglang.support import event, reading, run
from tests.formats.support import DONE

NOTE = b'"routing_data": {"worker_id": 7, "timing": {"a": 0.5}, "token_ids": [1, 2]}'
NOTED: dict[str, Any] = {"worker_id": 7, "timing": {"a": 0.5}, "token_ids": [1, 2]}


def told(stream: bytes) -> tuple[bytes, Reader]:
    reader = reading()
    outcome = run(reader, [stream])
    assert outcome.error is None
    return outcome.given, reader


@pytest.mark.parametrize(
    ("sent", "left"),
    [
        (b'{%b,"text" : "a"}', b'{"text" : "a"}'),
        (b'{"text" : "a",%b}', b'{"text" : "a"}'),
        (b'{"text":"a",%b,"x":1.50}', b'{"text":"a","x":1.50}'),
    ],
)
def test_routing_data_leaves_the_event_and_nothing_else_does(sent: bytes, left: bytes) -> None:
    given, reader = told(b"data: %b\n\n" % (sent % NOTE) + event(1, "stop") + DONE)
    assert given == b"data: %b\n\n" % left + event(1, "stop") + DONE
    assert reader.facts.routing_data == NOTED


def test_event_of_routing_data_alone_is_dropped() -> None:
    given, reader = told(b"data: {%b}\n\n" % NOTE + event(1, "stop") + DONE)
    assert given == event(1, "stop") + DONE
    assert reader.facts.routing_data == NOTED


def test_latest_routing_data_is_the_fact() -> None:
    stream = b'data: {"routing_data":{"worker_id":1}}\n\ndata: {"routing_data":null}\n\n'
    _, reader = told(stream + b"data: {%b}\n\n" % NOTE + event(1, "stop") + DONE)
    assert reader.facts.routing_data == NOTED


@pytest.mark.parametrize("value", [b"5", b'"x"', b"[1]", b"true", b"{,}"])
def test_routing_data_that_is_none_is_malformed(value: bytes) -> None:
    reader = reading()
    outcome = run(reader, [event(1), b'data: {"text":"a","routing_data":%b}\n\n' % value])
    assert isinstance(outcome.error, UpstreamMalformed)
    assert outcome.given == event(1)


@pytest.mark.parametrize(
    "document",
    [
        b'{"text":"say \\"routing_data\\": 5"}',
        b'{"meta_info":{"routing_data":5}}',
        b'{"text":"a","list":["routing_data"]}',
    ],
)
def test_what_is_only_called_so_stays(document: bytes) -> None:
    stream = b"data: %b\n\n" % document + event(1, "stop") + DONE
    given, reader = told(stream)
    assert given == stream
    assert reader.facts.routing_data is None
