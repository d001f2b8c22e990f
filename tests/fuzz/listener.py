"""The bytes of a client at gateway.downstream, without a socket."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import h11
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.downstream.asgi import Receive, Scope, Send
from gateway.downstream.connection import Begin, ClientConnection
from gateway.downstream.limits import ClientLimits
from gateway.downstream.request import ServerRequest
from gateway.downstream.start_pacing import StartPacer
from gateway.errors import Cancelled, RequestTooLarge
from gateway.loop.stepper import CoroutineStepper
from gateway.loop.unreachable_peers import UnreachablePeers
from gateway.loop.write_batch import WriteBatch
from gateway.proxy.lifecycle import Lifecycle
from tests.fuzz.target import Target
from tests.fuzz.wire import Wire, judge_headers

LIMIT = 1 << 20
#: A request: method, target, header lines without those of the framing, body.
Request = tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...], bytes]
_REQUEST_LINE = re.compile(rb"\A([A-Z-]+) +(\S+) +(HTTP/1\.[01]\r\n)")
_FRAMING = (b"content-length", b"transfer-encoding")


@dataclass(frozen=True)
class Served:
    """The requests that were served, and the statuses of final replies.

    The reply to invalid bytes depends on the cuts: it is not sent after a request in the same read.
    """

    requests: tuple[Request, ...]
    statuses: tuple[int, ...] = field(compare=False)


class _Application:
    def __init__(self) -> None:
        self.start_pacer, self.write_batch = StartPacer(), WriteBatch()
        self.unreachable_peers = UnreachablePeers()
        self.limits, self.lifecycle = ClientLimits(), Lifecycle()
        self.requests: list[Request] = []

    def limit_reached(self, limit: str) -> None:
        """Do nothing."""

    def direct_route(self, path: bytes, method: bytes) -> Begin:
        return self._begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("every path is served directly")

    def _begin(self, request: ServerRequest) -> None:
        CoroutineStepper().start(self._serve(request))

    async def _serve(self, request: ServerRequest) -> None:
        try:
            body = await request.read_body(LIMIT)
            lines = tuple((bytes(n), bytes(v)) for n, v in request.headers if n not in _FRAMING)
            self.requests.append((bytes(request.method), bytes(request.target), lines, bytes(body)))
            await request.reply(200, [], b"")
        except Cancelled:
            pass
        except RequestTooLarge:
            await request.reply(413, [], b"", close=True)


def read(pieces: Sequence[bytes]) -> Served:
    return asyncio.run(_read(pieces))


async def _read(pieces: Sequence[bytes]) -> Served:
    app, wire = _Application(), Wire(plain=True)
    connection = ClientConnection(Config(app, log_config=None), ServerState(), {})
    connection.connection_made(wire)
    for piece in pieces:
        if wire.closed:
            break
        connection.data_received(piece)
        pending = [connection._parser.request, *connection._parser.requests]
        assert sum(request.body.unread for request in pending if request is not None) <= LIMIT + len(piece)
        for _ in range(4):
            await asyncio.sleep(0)
    connection.eof_received()
    connection.connection_lost(None)
    return Served(tuple(app.requests), _statuses(wire.written))


def _statuses(written: bytes) -> tuple[int, ...]:
    """Return the statuses of replies whose bodies contain no line like a status line."""
    lines = [line for line in written.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    found = [int(line.split(b" ")[1]) for line in lines]
    return tuple(status for status in found if status >= 200)


def judge(data: bytes, served: Served) -> None:
    for method, target, headers, _ in served.requests:
        assert method.isalpha() or b"-" in method
        assert not set(b"\r\n\0 \t").intersection(target)
        judge_headers(headers)
    assert served.statuses.count(200) == len(served.requests), "one reply for each request"
    assert all(status in (200, 400, 413, 431) for status in served.statuses), served.statuses
    if b"RTSP/" in data or b"ICE/" in data:
        return  # the parser accepts these protocols as well without reporting it; no proxy forwards them
    other = reference(data)
    assert other[: len(served.requests)] == list(served.requests), f"another reading: {other!r}"


def reference(data: bytes) -> list[Request]:
    """Return the requests in ``data`` as h11 reads them, up to the first one that it rejects."""
    found: list[Request] = []
    while data:
        # h11 is stricter than RFC 9112 about spaces in the first line and line ends before it.
        other = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        other.receive_data(_REQUEST_LINE.sub(rb"\1 \2 \3", data.lstrip(b"\r\n"), count=1))
        other.receive_data(b"")
        try:
            found.append(_one(other))
        except h11.ProtocolError:
            break
        persistent = (b"connection", b"keep-alive") in found[-1][2]  # h11 ignores this in HTTP/1.0
        data = other.trailing_data[0] if persistent or other.their_state is not h11.MUST_CLOSE else b""
    return found


def _one(other: h11.Connection) -> Request:
    """Return the first request of a connection that has all its bytes. Raises h11.ProtocolError."""
    request = other.next_event()
    if not isinstance(request, h11.Request):
        raise h11.RemoteProtocolError("no request")
    body = b""
    while isinstance(event := other.next_event(), h11.Data):
        body += event.data
    if not isinstance(event, h11.EndOfMessage):
        raise h11.RemoteProtocolError("no end")
    lines = tuple((bytes(n), bytes(v)) for n, v in request.headers if bytes(n) not in _FRAMING)
    target = re.sub(rb"^[A-Za-z]+://[^/?]*", b"", bytes(request.target))
    return bytes(request.method), target, lines, body


TARGET = Target("listener", read, judge)
