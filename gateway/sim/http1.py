"""A small HTTP/1.1 server that keeps every byte and sees at once when a client leaves.

Owns: connections, framing, keep-alive, back-pressure, and all the ways to break them. Must never enter: a
dialect, JSON, generation.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from http import HTTPStatus
from typing import Protocol, cast

import httptools

from gateway.sim.arrivals import Arrival, Log, Mark
from gateway.sim.script import Script

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
TEXT = b"text/plain; charset=utf-8"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_LINGER_NONE = struct.pack("ii", 1, 0)
_CHUNK_HEADS = [b"%x\r\n" % size for size in range(4096)]


class Application(Protocol):
    """What answers the requests of a server."""

    def accept(self, call: Call) -> bool:
        """Headers are read. False: the application has acted, the body is of no interest."""
        ...

    def handle(self, call: Call) -> None:
        """The request is read in full."""
        ...


class Clock:
    """The Date header's value, made once a second."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = 0.0
        self._line = b""

    def head(self) -> bytes:
        """The header lines each response starts with."""
        now = self._loop.time()
        if now >= self._until:
            self._until = now + 1
            date = format_datetime(datetime.now(UTC), usegmt=True)
            self._line = b"date: %b\r\nserver: uvicorn\r\n" % date.encode()
        return self._line


class Server:
    """What all connections of a server share."""

    def __init__(self, app: Application, log: Log, keep_alive: float) -> None:
        self.app = app
        self.log = log
        self.keep_alive = keep_alive
        self.clock = Clock()
        self.connections: set[Connection] = set()
        self.accepted = 0

    def protocol(self) -> Connection:
        return Connection(self)

    def close(self, *, at_once: bool = False) -> None:
        """Close every connection. What was written is still sent, ``at_once`` only if its client reads."""
        for connection in list(self.connections):
            if at_once and connection.paused:
                connection.reset()
            else:
                connection.close()

    def close_idle(self) -> None:
        """Close those on which no request is under way."""
        for connection in list(self.connections):
            if not connection.busy:
                connection.close()

    def reset(self) -> None:
        """Break every connection with RST."""
        for connection in list(self.connections):
            connection.reset()


class Call:
    """One request and its answer. ``on_gone`` is called once if the client leaves before the answer is whole,
    ``on_writable`` when the client has taken enough for writing to make sense again."""

    __slots__ = ("arrival", "connection", "done", "keep_alive", "on_gone", "on_writable", "script", "started")

    def __init__(self, connection: Connection, arrival: Arrival) -> None:
        self.connection = connection
        self.arrival = arrival
        self.keep_alive = True
        self.started = False
        self.done = False
        self.script: Script | None = None
        self.on_gone: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None

    @property
    def writable(self) -> bool:
        return not self.connection.paused

    def send(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes = JSON,
        *,
        extra: bytes = b"vary: Origin\r\n",
    ) -> None:
        """The whole answer. ``extra`` are header lines. An empty content type sends none."""
        if self.done:
            return
        kind = b"content-type: %b\r\n" % content_type if content_type else b""
        head = self._head(status, b"content-length: %d\r\n%b%b" % (len(body), kind, extra))
        self.connection.write(head if self.arrival.method == b"HEAD" else head + body)
        self._finish()

    def start(self, status: int = 200, content_type: bytes = EVENTS, *, extra: bytes = b"") -> None:
        """The head of a chunked answer."""
        if self.done:
            return
        lines = b"content-type: %b\r\nvary: Origin\r\n%btransfer-encoding: chunked\r\n" % (
            content_type,
            extra,
        )
        self.connection.write(self._head(status, lines))

    def write(self, data: bytes) -> None:
        """One chunk."""
        if not self.done:
            self.connection.write(chunk(data))

    def end(self, data: bytes = b"") -> None:
        """One last chunk, if any, and the end of a chunked answer."""
        if not self.done:
            self.connection.write(chunk(data) + b"0\r\n\r\n" if data else b"0\r\n\r\n")
            self._finish()

    def promise(self, status: int, length: int, part: bytes, content_type: bytes = JSON) -> None:
        """A head that promises ``length`` bytes and the first ``part`` of them."""
        lines = b"content-length: %d\r\ncontent-type: %b\r\n" % (length, content_type)
        self.connection.write(self._head(status, lines) + part)

    def cut(self, *, reset: bool = False, part: bytes = b"") -> None:
        """Break the connection after ``part``, bytes outside of any framing."""
        self.done = True
        self.connection.server.log.mark(self.arrival, Mark.CUT)
        if part:
            self.connection.write(part)
        if reset:
            self.connection.reset()
        else:
            self.connection.close()

    def gone(self) -> None:
        """The client has left."""
        if self.done:
            return
        self.done = True
        if not self.connection.closing:
            self.connection.server.log.mark(self.arrival, Mark.CLIENT_GONE)
        if self.on_gone is not None:
            self.on_gone()

    def _head(self, status: int, lines: bytes) -> bytes:
        self.started = True
        self.arrival.status = status
        common = self.connection.server.clock.head()
        close = b"" if self.keep_alive else b"connection: close\r\n"
        reason = _REASONS.get(status, b"")
        return b"HTTP/1.1 %d %b\r\n%b%b%b\r\n" % (status, reason, common, lines, close)

    def _finish(self) -> None:
        self.done = True
        self.on_gone = self.on_writable = None
        self.connection.server.log.mark(self.arrival, Mark.FINISHED)
        self.connection.answered(self)


class Connection(asyncio.Protocol):
    """One client connection: requests one after the other, pipelined ones wait their turn."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.paused = False
        #: This side ends the connection, so its end says nothing of the client.
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._number = 0
        self._active: Call | None = None
        self._waiting: deque[Call] = deque()
        self._reading: Call | None = None
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._idle_since = 0.0
        self._idle: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is being read or answered."""
        return self._active is not None or self._reading is not None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.server.accepted += 1
        self._number = self.server.accepted
        self.server.connections.add(self)
        self._idle_since = self._loop.time()
        self._idle = self._loop.call_later(self.server.keep_alive, self._check_idle)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # As uvicorn without a WebSocket library: the offer to upgrade is ignored, the request served.
            pass
        except httptools.HttpParserError:
            self._refuse()

    def eof_received(self) -> None:
        self._left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.server.connections.discard(self)
        self.server.log.changed()
        if self._idle is not None:
            self._idle.cancel()
        self._left()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._active is not None and self._active.on_writable is not None:
            self._active.on_writable()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = []
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        arrival = Arrival(
            method=self._parser.get_method(),
            target=self._target,
            headers=self._headers,
            connection=self._number,
            at=self._loop.time(),
        )
        call = self._reading = Call(self, arrival)
        call.keep_alive = self._parser.should_keep_alive()
        self.server.log.all.append(arrival)
        if not self.server.app.accept(call):
            self._active = call
            self._reading = None
            if not call.done and self._transport is not None:
                self._transport.pause_reading()
            return
        if any(
            name.lower() == b"expect" and value.lower() == b"100-continue" for name, value in self._headers
        ):
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if self._reading is not None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        call, self._reading = self._reading, None
        if call is None:
            return
        call.arrival.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self.server.log.mark(call.arrival, Mark.ARRIVED)
        if self._active is not None:
            self._waiting.append(call)
        else:
            self._active = call
            self.server.app.handle(call)

    # What the answers call.

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        if self._transport is not None:
            self._transport.write(data)

    def answered(self, call: Call) -> None:
        """``call`` is over; take the next one or wait for it."""
        self._active = None
        if not call.keep_alive:
            self.close()
        elif self._waiting:
            # In the loop's next turn: a long pipeline must not become a deep stack.
            self._loop.call_soon(self._next)
        else:
            self._idle_since = self._loop.time()

    def close(self) -> None:
        """Send what was written, then FIN."""
        self.closing = True
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """RST, now."""
        self.closing = True
        if self._transport is not None:
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            self._transport.abort()

    def _next(self) -> None:
        if self._active is None and self._waiting and self._transport is not None:
            self._active = self._waiting.popleft()
            self.server.app.handle(self._active)

    def _left(self) -> None:
        active, self._active = self._active, None
        for call in (active, *self._waiting, self._reading):
            if call is not None:
                call.gone()
        self._waiting.clear()
        self._reading = None

    def _refuse(self) -> None:
        if self._transport is not None and self._active is None:
            body = b"Invalid HTTP request received."
            head = b"HTTP/1.1 400 Bad Request\r\n%bcontent-type: text/plain; charset=utf-8\r\n"
            tail = b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
            self.write(head % self.server.clock.head() + tail)
        self.close()

    def _check_idle(self) -> None:
        left = self._idle_since + self.server.keep_alive - self._loop.time()
        busy = self.busy
        if not busy and left <= 0:
            self._idle = None
            self.close()
        else:
            self._idle = self._loop.call_later(self.server.keep_alive if busy else left, self._check_idle)


def chunk(data: bytes) -> bytes:
    """``data`` as one HTTP chunk."""
    size = len(data)
    head = _CHUNK_HEADS[size] if size < 4096 else b"%x\r\n" % size
    return b"%b%b\r\n" % (head, data)
