"""One request and its answer, as the engines see it.

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


class ServerState(Protocol):
    """What all calls of a server share."""

    @property
    def log(self) -> RequestLog: ...

    @property
    def clock(self) -> Clock: ...


class ClientConnection(Protocol):
    """What a call needs of its connection."""

    @property
    def server(self) -> ServerState: ...

    @property
    def paused(self) -> bool:
        """The client does not take what was written."""
        ...

    @property
    def closing(self) -> bool:
        """This side ends the connection, so its end says nothing of the client."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        ...

    def answered(self, exchange: Exchange) -> None:
        """``exchange`` is over."""
        ...

    def close(self) -> None:
        """Send what was written, then FIN."""
        ...

    def reset(self) -> None:
        """RST, now."""
        ...


class Exchange:
    """One request and its answer. ``on_gone`` is called once if the client leaves before the answer is whole,
    ``on_writable`` when the client has taken enough for writing to make sense again."""

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
        self.connection.server.log.record(self.arrival, Milestone.CUT)
        if part:
            self.connection.write(part)
        if reset:
            self.connection.reset()
        else:
            self.connection.close()

    def client_gone(self) -> None:
        """The client has left."""
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
    """``data`` as one HTTP chunk."""
    size = len(data)
    head = _CHUNK_HEADS[size] if size < 4096 else b"%x\r\n" % size
    return b"%b%b\r\n" % (head, data)
