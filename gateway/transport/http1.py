"""One HTTP/1.1 client connection to a worker, on asyncio and httptools.

Owns: framing, back-pressure and the honest end of a reply. Must never enter: a dialect, choice of a worker,
retries. Source of the rules: RFC 9112.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import httptools

from gateway.errors import NotReceived, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.base import Headers, ReplyHead

#: Bytes of a reply held for a reader that has not come for them before the socket is no longer read.
HIGH_WATER = 128 * 1024
#: A reply's status line and headers (or its trailers) over this are taken as nonsense, in bytes.
HEAD_LIMIT = 256 * 1024

# struct tcp_info: tcpi_bytes_acked, a u64; a SYN counts as one byte. Linux has had it since 4.1.
_BYTES_ACKED = struct.Struct("@Q")
_BYTES_ACKED_AT = 120


class Connection(asyncio.Protocol):
    """One connection, used for one exchange at a time: ``send``, then ``head``, then ``read`` until b"".

    ``head`` and ``read`` raise UpstreamIncomplete when the connection ends early (NotReceived when it can be
    shown that the worker never had the request) and UpstreamMalformed when the bytes are not HTTP/1.1.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._error: UpstreamIncomplete | UpstreamMalformed | None = None
        self._sent_before = 0
        self._paused = False
        self.closed = False
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._head: ReplyHead | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._chunks: list[bytes] = []
        self._held = 0
        self._complete = False
        self._reusable = False
        self._until_close = False
        self._awaiting = False
        self._answered = False
        self._sent = 0

    def __repr__(self) -> str:
        state = "closed" if self.closed else "busy" if self._awaiting else "idle"
        return f"<Connection {state} held={self._held}>"

    # -- what the handler calls

    def send(self, head: bytes, body: bytes) -> None:
        """Write one request. ``head`` ends with its blank line."""
        self._awaiting = True
        self._sent = len(head) + len(body)
        if len(body) < 65536:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    async def head(self) -> ReplyHead:
        """Wait for the final response's status and headers; interim responses are skipped."""
        while self._head is None:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """All body bytes that came since the last call, at least one; b"" when the reply is whole."""
        while not self._chunks:
            if self._complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        self._held = 0
        if self._paused and not self.closed:
            self._paused = False
            self._transport.resume_reading()
        return data

    def recycle(self) -> bool:
        """Make ready for another request. False: the connection cannot carry one and was closed."""
        if not (self._complete and self._reusable) or self.closed or self._transport.is_closing():
            self.close()
            return False
        if self._chunks or self._transport.get_write_buffer_size():
            self.close()
            return False
        sent = self._sent
        self._reset()
        self._sent_before += sent
        return True

    def close(self) -> None:
        """Close at once; what was not sent yet is dropped."""
        if not self.closed:
            self.closed = True
            self._transport.abort()

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "abort")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if not self._awaiting or self._complete:
            # Bytes that nobody asked for: what follows could be taken for the next reply.
            return self.close()
        self._answered = True
        if self._head is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break(UpstreamMalformed("the worker switched protocols"))
        except httptools.HttpParserError as error:
            self._break(UpstreamMalformed("the worker's reply is not HTTP/1.1", cause=error))
        if self._head is None and self._head_bytes > HEAD_LIMIT:
            self._break(UpstreamMalformed("the head of the worker's reply is over the size limit"))
        if self._held > HIGH_WATER and not self._paused and not self.closed:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._awaiting and not self._complete and self._error is None:
            if self._head is not None and self._until_close and exc is None:
                self._complete = True
            elif not self._answered and self._never_acknowledged():
                self._error = NotReceived("the worker closed the connection before it took the request")
            else:
                self._error = UpstreamIncomplete("the worker's reply broke off", cause=exc)
        self._wake()

    # -- what the parser calls

    def on_message_begin(self) -> None:
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status: int = self._parser.get_status_code()
        if status < 200:
            if status == 101:
                self._break(UpstreamMalformed("the worker switched protocols"))
            return
        if status > 599:
            return self._break(UpstreamMalformed("the worker's status code is not one of HTTP's"))
        self._head = ReplyHead(status, self._headers)
        self._until_close = not _has_length(self._headers)

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._held += len(body)

    def on_message_complete(self) -> None:
        if self._head is not None:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()

    # -- internals

    def _break(self, error: UpstreamMalformed) -> None:
        if self._error is None:
            self._error = error
        self.close()

    def _never_acknowledged(self) -> bool:
        """True only if the peer's TCP is known not to have acknowledged a byte of this request."""
        if self._transport.get_extra_info("sslcontext") is not None:
            return False  # encrypted bytes cannot be compared with ours
        sock = self._transport.get_extra_info("socket")
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED_AT + 8)
        except (OSError, AttributeError):
            return False
        if len(info) < _BYTES_ACKED_AT + 8:
            return False
        acknowledged: int = _BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)[0]
        return acknowledged <= 1 + self._sent_before

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _has_length(headers: Headers) -> bool:
    return any(
        name == b"content-length" or (name == b"transfer-encoding" and value.lower().endswith(b"chunked"))
        for name, value in headers
    )
