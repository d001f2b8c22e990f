"""The bytes of a worker at gateway.upstream.connection, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import h11

from gateway.errors import UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import ReplyHead
from gateway.upstream.connection import HIGH_WATER, Connection
from gateway.upstream.read_buffer import READ_SIZE
from tests.fuzz.target import Target
from tests.fuzz.wire import Wire, judge_headers
from tests.upstream.peer import BODY, REQUEST, deliver

_NEXT = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnext"


@dataclass(frozen=True)
class Reply:
    """The reply as it was read. ``failure`` is the error that a reader gets at the end.

    ``again``: the connection carries another exchange. It depends on the cuts, because a line end after the
    reply rules it out if it arrives in a read of its own.
    """

    head: tuple[int, tuple[tuple[bytes, bytes], ...]] | None
    body: bytes
    failure: type[Exception] | None
    again: bool = field(compare=False)


def read(pieces: Sequence[bytes]) -> Reply:
    return asyncio.run(_read(pieces))


async def _read(pieces: Sequence[bytes]) -> Reply:
    wire = Wire(plain=False)
    connection = Connection(bytearray(READ_SIZE))
    connection.connection_made(wire)
    connection.send(REQUEST, BODY)
    body: list[bytes] = []
    failure: type[Exception] | None = None
    for piece in pieces:
        if wire.closed:
            break
        deliver(connection, piece)
        assert connection._reply.buffered <= HIGH_WATER + READ_SIZE
        failure = failure or _take(connection, body)
    complete = connection.ready and failure is None
    head = connection._reply.head
    again = complete and connection.recycle()
    if again:
        connection.send(REQUEST, BODY)
        deliver(connection, _NEXT)
        assert connection.take() == b"next", "a reply changed the one after it"
    elif not complete:
        if not wire.closed:
            connection.eof_received()
        connection.connection_lost(None)
        failure = failure or _take(connection, body)
        head = connection._reply.head
    return Reply(_plain(head), b"".join(body), failure, bool(again))


def _take(connection: Connection, body: list[bytes]) -> type[Exception] | None:
    """Append what can be read now to ``body``; return the failure, if there is one."""
    while connection.ready:
        try:
            if connection._reply.head is None:  # a reader waits for the head first
                raise connection._error or AssertionError("ready for nothing")
            part = connection.take()
        except (UpstreamIncomplete, UpstreamMalformed) as error:
            return type(error)
        if not part:
            return None
        body.append(part)
    return None


def _plain(head: ReplyHead | None) -> tuple[int, tuple[tuple[bytes, bytes], ...]] | None:
    return None if head is None else (head.status, tuple((bytes(n), bytes(v)) for n, v in head.headers))


def judge(data: bytes, reply: Reply) -> None:
    if reply.head is not None:
        status, headers = reply.head
        assert 200 <= status <= 599
        judge_headers(headers)
    assert _made_of(data, reply.body), "bytes that the worker did not send"
    other = reference(data)
    if other is not None and reply.head is not None and reply.failure is None:
        status, body, rest = other
        assert (status, body) == (reply.head[0], reply.body), f"another reading: {other!r}"
        assert not reply.again or not rest.strip(b"\r\n"), "the rest could be taken for the next reply"


def _made_of(data: bytes, body: bytes) -> bool:
    """Return True if ``body`` is a subsequence of ``data``."""
    remaining = iter(data)
    return all(byte in remaining for byte in body)


def reference(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Return status, body and the rest as h11 reads them; None if it rejects the bytes."""
    other = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    other.send(h11.Request(method="POST", target="/", headers=[("host", "w"), ("content-length", "0")]))
    other.send(h11.EndOfMessage())
    other.receive_data(data)
    other.receive_data(b"")
    status, body = 0, b""
    try:
        while True:
            event = other.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return status, body, other.trailing_data[0]
            elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return None
    except h11.RemoteProtocolError:
        return None


TARGET = Target("upstream", read, judge)
