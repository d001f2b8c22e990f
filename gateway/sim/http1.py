"""A small HTTP/1.1 server that records every byte and notices at once when a client disconnects.

Owns: connections, requests, keep-alive, back-pressure. Must never enter: answers, a dialect, JSON.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import Protocol, cast

import httptools

from gateway.sim.exchange import Clock, Exchange
from gateway.sim.request_log import Arrival, Milestone, RequestLog

_LINGER_NONE = struct.pack("ii", 1, 0)


class Application(Protocol):
    """The application behind a server."""

    def accept(self, exchange: Exchange) -> bool:
        """Handle a request whose headers were read. Return False if the application has acted and needs no
        body.
        """
        ...

    def handle(self, exchange: Exchange) -> None:
        """Handle a request that was read completely."""
        ...


class HttpServer:
    """The state that all connections of a server share."""

    def __init__(self, app: Application, log: RequestLog, keep_alive: float) -> None:
        self.app = app
        self.log = log
        self.keep_alive = keep_alive
        self.clock = Clock()
        self.connections: set[HttpConnection] = set()
        self.accepted = 0

    def protocol(self) -> HttpConnection:
        return HttpConnection(self)

    def close(self, *, at_once: bool = False) -> None:
        """Close every connection. What was written is still sent; with ``at_once`` only if the client
        reads.
        """
        for connection in list(self.connections):
            if at_once and connection.paused:
                connection.reset()
            else:
                connection.close()

    def close_idle(self) -> None:
        """Close the connections without a request."""
        for connection in list(self.connections):
            if not connection.busy:
                connection.close()

    def reset(self) -> None:
        """Break every connection with RST."""
        for connection in list(self.connections):
            connection.reset()


class HttpConnection(asyncio.Protocol):
    """One client connection: requests are answered one after the other, pipelined ones wait."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.paused = False
        #: True if this side closes the connection, so that its end is no disconnect of the client.
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._number = 0
        self._active: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._reading: Exchange | None = None
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._idle_since = 0.0
        self._idle: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """True while a request is read or answered."""
        return self._active is not None or self._reading is not None

    # Called by asyncio.

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
            # Like uvicorn without a WebSocket library: the offer to upgrade is ignored, the request is
            # served.
            pass
        except httptools.HttpParserError:
            self._refuse()

    def eof_received(self) -> None:
        self._lose_client()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.server.connections.discard(self)
        self.server.log.changed()
        if self._idle is not None:
            self._idle.cancel()
        self._lose_client()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._active is not None and self._active.on_writable is not None:
            self._active.on_writable()

    # Called by the parser.

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
        exchange = self._reading = Exchange(self, arrival)
        exchange.keep_alive = self._parser.should_keep_alive()
        self.server.log.all.append(arrival)
        if not self.server.app.accept(exchange):
            self._active = exchange
            self._reading = None
            if not exchange.done and self._transport is not None:
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
        exchange, self._reading = self._reading, None
        if exchange is None:
            return
        exchange.arrival.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self.server.log.record(exchange.arrival, Milestone.ARRIVED)
        if self._active is not None:
            self._waiting.append(exchange)
        else:
            self._active = exchange
            self.server.app.handle(exchange)

    # Called by the exchange.

    def write(self, data: bytes) -> None:
        """Send ``data`` as it is."""
        if self._transport is not None:
            self._transport.write(data)

    def answered(self, exchange: Exchange) -> None:
        """Note that ``exchange`` has been answered; take the next request or wait for one."""
        self._active = None
        if not exchange.keep_alive:
            self.close()
        elif self._waiting:
            # Not called directly: each request of a long pipeline would add to the depth of the stack.
            self._loop.call_soon(self._next)
        else:
            self._idle_since = self._loop.time()

    def close(self) -> None:
        """Send what was written, then FIN."""
        self.closing = True
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Send RST at once."""
        self.closing = True
        if self._transport is not None:
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            self._transport.abort()

    def _next(self) -> None:
        if self._active is None and self._waiting and self._transport is not None:
            self._active = self._waiting.popleft()
            self.server.app.handle(self._active)

    def _lose_client(self) -> None:
        active, self._active = self._active, None
        for exchange in (active, *self._waiting, self._reading):
            if exchange is not None:
                exchange.client_gone()
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
