"""One request and its answer, as the simulated engines see it.

Owns: the answer's head and framing, and all the ways to break them. Must never enter: a socket, a dialect,
JSON, generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from http import HTTPStatus
from typing import Protocol

from gateway.sim.request_log import Arrival, Milestone, RequestLog
from gateway.sim.script import Script

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
TEXT = b"text/plain; charset=utf-8"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_CHUNK_HEADS = [b"%x\r\n" % size for size in range(4096)]


class Clock:
    """The source of the Date header, rendered once a second."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = 0.0
        self._line = b""

    def head(self) -> bytes:
        """Return the header lines with which each response starts."""
        now = self._loop.time()
        if now >= self._until:
            self._until = now + 1
            date = format_datetime(datetime.now(UTC), usegmt=True)
            self._line = b"date: %b\r\nserver: uvicorn\r\n" % date.encode()
        return self._line


class ServerState(Protocol):
    """The objects that all exchanges of a server share."""

    @property
    def log(self) -> RequestLog: ...

    @property
    def clock(self) -> Clock: ...


class ClientConnection(Protocol):
    """The connection of an exchange."""

    @property
    def server(self) -> ServerState: ...

    @property
    def paused(self) -> bool:
        """True while the client does not read what was written."""
        ...

    @property
    def closing(self) -> bool:
        """True if this side closes the connection, so that its end is no disconnect of the client."""
        ...

    def write(self, data: bytes) -> None:
        """Send ``data`` as it is."""
        ...

    def answered(self, exchange: Exchange) -> None:
        """Note that ``exchange`` has been answered."""
        ...

    def close(self) -> None:
        """Send what was written, then FIN."""
        ...

    def reset(self) -> None:
        """Send RST at once."""
        ...


class Exchange:
    """One request and its answer.

    ``on_gone`` is called once if the client disconnects before the answer is complete, ``on_writable`` when
    the client reads again.
    """

    __slots__ = ("arrival", "connection", "done", "keep_alive", "on_gone", "on_writable", "script", "started")

    def __init__(self, connection: ClientConnection, arrival: Arrival) -> None:
        self.connection = connection
        self.arrival = arrival
        self.keep_alive = True
        self.started = False
        self.done = False
        self.script: Script | None = None
        self.on_gone: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None

    def send(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes = JSON,
        *,
        extra: bytes = b"vary: Origin\r\n",
    ) -> None:
        """Send a complete answer. ``extra`` are header lines; with an empty ``content_type`` none is sent."""
        if self.done:
            return
        kind = b"content-type: %b\r\n" % content_type if content_type else b""
        head = self._head(status, b"content-length: %d\r\n%b%b" % (len(body), kind, extra))
        self.connection.write(head if self.arrival.method == b"HEAD" else head + body)
        self._finish()

    def start(self, status: int = 200, content_type: bytes = EVENTS, *, extra: bytes = b"") -> None:
        """Send the head of a chunked answer."""
        if self.done:
            return
        lines = b"content-type: %b\r\nvary: Origin\r\n%btransfer-encoding: chunked\r\n" % (
            content_type,
            extra,
        )
        self.connection.write(self._head(status, lines))

    def write(self, data: bytes) -> None:
        """Send one chunk."""
        if not self.done:
            self.connection.write(chunk(data))

    def end(self, data: bytes = b"") -> None:
        """Send one last chunk, if ``data`` is not empty, and the end of a chunked answer."""
        if not self.done:
            self.connection.write(chunk(data) + b"0\r\n\r\n" if data else b"0\r\n\r\n")
            self._finish()

    def promise(self, status: int, length: int, part: bytes, content_type: bytes = JSON) -> None:
        """Send a head with a content length of ``length`` bytes, and the first ``part`` of the body."""
        lines = b"content-length: %d\r\ncontent-type: %b\r\n" % (length, content_type)
        self.connection.write(self._head(status, lines) + part)

    def cut(self, *, reset: bool = False, part: bytes = b"") -> None:
        """Break the connection after ``part``, bytes outside of any framing."""
        self.done = True
        self.connection.server.log.record(self.arrival, Milestone.CUT)
        if part:
            self.connection.write(part)
        if reset:
            self.connection.reset()
        else:
            self.connection.close()

    def client_gone(self) -> None:
        """Handle a disconnect of the client."""
        if self.done:
            return
        self.done = True
        if not self.connection.closing:
            self.connection.server.log.record(self.arrival, Milestone.CLIENT_GONE)
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
        self.connection.server.log.record(self.arrival, Milestone.FINISHED)
        self.connection.answered(self)


def chunk(data: bytes) -> bytes:
    """Return ``data`` as one HTTP chunk."""
    size = len(data)
    head = _CHUNK_HEADS[size] if size < 4096 else b"%x\r\n" % size
    return b"%b%b\r\n" % (head, data)
