"""A scripted worker that records times, raw bytes, disconnects and aborts.

Owns: its connections, the part of HTTP/1.1 that the gateway uses towards a worker, the records. Must never
enter: expectations. A closed connection is noticed at once, and the task that serves it is cancelled.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.loop.tasks import Tasks
from tests.chaos.dialects import DONE, ENGINES, ROUTES, Route, sse

JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream")
TOO_LARGE = b'{"error": {"message": "Request entity too large"}}'
_SOUND = ("/ready", "/health")
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class ReceivedRequest:
    """A received request. ``at`` is in seconds of the monotonic clock."""

    at: float
    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""

    @property
    def path(self) -> str:
        return self.target.decode().partition("?")[0]

    def header(self, name: str) -> str | None:
        return next((value.decode() for key, value in self.headers if key == name.encode()), None)


class Call:
    """A client's request, and its reply.

    ``gone`` and ``gone_at`` are set if its connection is closed before the reply is complete; ``aborted`` is
    set when an abort names it.
    """

    def __init__(self, connection: _Connection, request: ReceivedRequest, route: Route) -> None:
        self.request = request
        self.gone = asyncio.Event()
        self.gone_at: float | None = None
        self.aborted = asyncio.Event()
        self.answered = False
        self.events = 0
        #: The pieces of the reply's body.
        self.sent: list[bytes] = []
        self._wire = connection
        self._route = route
        self.id = route.id_of(dict(request.headers), request.body)

    @property
    def body(self) -> bytes:
        return self.request.body

    def write(self, data: bytes) -> None:
        """Send raw bytes."""
        self._wire.transport.write(data)

    def reply(self, body: bytes | None = None, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
        """Send a complete reply, by default the engine's own to such a request."""
        body = self._route.reply(self.id, 3, "length") if body is None else body
        self.sent.append(body)
        self.write(head(status, JSON, *headers, length=len(body)) + body)
        self.end()

    @property
    def stuck(self) -> bool:
        """Return True if the gateway does not read and over a mebibyte is waiting to be sent."""
        size = self._wire.transport.get_write_buffer_size()
        return bool(size > 1024 * 1024)

    def half(self, tokens: int = 3) -> None:
        """Send the head of a complete reply, and half of the body it announces."""
        body = self._route.reply(self.id, tokens, "length")
        self.write(head(200, JSON, length=len(body)) + body[: len(body) // 2])

    def stream(self, *headers: tuple[bytes, bytes]) -> None:
        """Send the head of a stream."""
        self.write(head(200, EVENTS, *headers))

    def event(self, reason: str | None = None) -> None:
        """Send the next event, with one more token."""
        self.events += 1
        self._piece(sse(self._route.event(self.id, self.events, reason)))

    def finish(self, reason: str = "length") -> None:
        """Send the last event of a stream and its end."""
        self.event(reason)
        self._piece(DONE)
        self.write(b"0\r\n\r\n")
        self.end()

    def abort_reply(self) -> None:
        """Send the engine's reply to a request that was aborted after two tokens."""
        self.reply(self._route.reply(self.id, 2, "abort"))

    def end(self) -> None:
        """Note that the reply is complete."""
        self.answered = True
        self._wire.call = None

    def _piece(self, data: bytes) -> None:
        self.sent.append(data)
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def reset(self) -> None:
        """Reset the connection."""
        self.answered = True
        self._wire.reset()


Behaviour = Callable[[Call], Coroutine[Any, Any, None]]


def wants_stream(call: Call) -> bool:
    return b'"stream":true' in call.body.replace(b" ", b"")


async def good(call: Call) -> None:
    """Answer at once, with a stream if the request asks for one."""
    if not wants_stream(call):
        return call.reply()
    call.stream()
    call.event()
    call.finish()


async def silent(call: Call) -> None:
    """Accept the request and send nothing."""
    await asyncio.Event().wait()


class Worker:
    """A worker of a ``kind``. ``behave`` answers each request that arrives from now on.

    ``calls`` are the requests of clients, ``other_requests`` all others except probes, ``connections`` those
    that are open, ``faults`` the events that must not occur in a test.
    """

    def __init__(self, kind: str, behave: Behaviour = good) -> None:
        self.kind = kind
        self.behave = behave
        self.engine = ENGINES[kind]
        self.calls: list[Call] = []
        self.other_requests: list[ReceivedRequest] = []
        self.connections: set[_Connection] = set()
        self.faults: list[object] = []
        self.port = 0
        self.ignores_input = False
        #: Header lines added to all replies except those to clients' requests.
        self.added: tuple[tuple[bytes, bytes], ...] = ()
        #: A body of more bytes is refused with a 413 before it is read; then the connection is closed.
        self.body_limit = 10**12
        #: The path of requests that are read and answered by a reset of the connection.
        self.breaks = ""
        self._routes = {route.path: route for route in ROUTES if route.kind == kind}
        self._tasks = Tasks()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def aborts(self) -> list[ReceivedRequest]:
        return self.requests_to(self.engine.abort_path)

    def requests_to(self, path: str) -> list[ReceivedRequest]:
        """Return the other requests to ``path``."""
        return [request for request in self.other_requests if request.path == path]

    async def start(self) -> None:
        """Listen; after a ``die``, on the same port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self.port, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def die(self) -> None:
        """Close the listening socket and reset all connections, like a process that is killed."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.reset()
        await self._tasks.stop()

    def stop_reading(self) -> None:
        """Accept connections from now on, and read nothing from old or new ones."""
        self.ignores_input = True
        for connection in self.connections:
            connection.transport.pause_reading()

    def receive(self, connection: _Connection, request: ReceivedRequest) -> None:
        """Handle a complete request."""
        route, probe = self._routes.get(request.path), self.engine.probes.get(request.path)
        if route is not None and request.body != b"{}":
            call = connection.call = Call(connection, request, route)
            self.calls.append(call)
            connection.task = self._tasks.spawn(self.behave(call), "behaviour")
            connection.task.add_done_callback(self._done)
        elif probe is not None:
            connection.answer(probe.status, probe.body)
        elif request.path in _SOUND:
            connection.answer(200, b"")
        else:
            self.other_requests.append(request)
            if request.path == self.breaks:
                return connection.reset()
            abort = request.path == self.engine.abort_path
            if abort:
                self._abort(request.body)
            connection.answer(404 if request.method == b"GET" else 200, b"{}")

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self.faults.append(fault)

    def _abort(self, body: bytes) -> None:
        names = self.engine.aborted(body)
        for call in self.calls:
            if names is None or any(call.id.startswith(name) for name in names):
                call.aborted.set()


class _Connection(asyncio.Protocol):
    """A connection; ``call`` is the request that is being answered on it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.transport: Any = None
        self.call: Call | None = None
        self.task: asyncio.Task[None] | None = None
        self._buffer = bytearray()
        self._head: ReceivedRequest | None = None
        self._length = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.worker.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self.worker.ignores_input:
            self.transport.pause_reading()
            return
        self._buffer += data
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._read_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            if self._length > self.worker.body_limit:
                self.answer(413, TOO_LARGE)
                self.transport.close()
                return
        if self._head is not None and len(self._buffer) >= self._length:
            if len(self._buffer) > self._length or self.call is not None:
                self.worker.faults.append("a request was received before the one before it was answered")
            head, body = self._head, bytes(self._buffer)
            self._buffer, self._head = bytearray(), None
            self.worker.receive(self, ReceivedRequest(head.at, head.method, head.target, head.headers, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.worker.connections.discard(self)
        if self.call is not None and not self.call.answered:
            self.call.gone_at = time.monotonic()
            self.call.gone.set()
            if self.task is not None:
                self.task.cancel()

    def answer(self, status: int, body: bytes) -> None:
        self.transport.write(head(status, JSON, *self.worker.added, length=len(body)) + body)

    def reset(self) -> None:
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _read_head(self, raw: bytes) -> None:
        first, *lines = raw.split(b"\r\n")
        pairs = (line.partition(b":") for line in lines)
        headers = [(name.lower(), value.strip()) for name, _, value in pairs]
        method, target, _ = first.split(b" ")
        self._length = int(dict(headers).get(b"content-length", b"0"))
        self._head = ReceivedRequest(time.monotonic(), method, target, headers)


def head(status: int, *headers: tuple[bytes, bytes], length: int | None = None) -> bytes:
    """Return a status line and headers; the body is chunked without a ``length``."""
    framing = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
    lines = [b"HTTP/1.1 %d X" % status, *(b"%b: %b" % line for line in headers), framing]
    return b"\r\n".join([*lines, b"", b""])


@asynccontextmanager
async def workers(kind: str, count: int = 2, behave: Behaviour = good) -> AsyncIterator[list[Worker]]:
    """Start ``count`` workers of a ``kind`` with the same behaviour, on free ports."""
    made = [Worker(kind, behave) for _ in range(count)]
    try:
        for worker in made:
            await worker.start()
        yield made
        assert [fault for worker in made for fault in worker.faults] == []
    finally:
        for worker in made:
            await worker.die()
        await asyncio.sleep(0.001)
