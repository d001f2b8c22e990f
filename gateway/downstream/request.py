"""A request on a client connection, and the framing of its reply.

Owns: the disconnect of the client as the handler learns it, and the reply. Must never enter: parsing, a
dialect, ASGI. The handler sees a ServerRequest as ``gateway.downstream.client.Client``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from gateway.downstream import encode
from gateway.downstream.client import NO_BODY
from gateway.downstream.request_body import RequestBody
from gateway.errors import Cancelled, GatewayError
from gateway.formats.contract import Headers

#: Bytes of a reply above which copying them takes longer than sending them in parts.
LARGE: Final = 32 * 1024


class ReplyConnection(Protocol):
    """The connection, as far as a request and its reply need it."""

    @property
    def write_paused(self) -> bool:
        """True while the client does not read the bytes that were written."""
        ...

    def write(self, data: bytes) -> None: ...

    def write_parts(self, parts: Sequence[bytes]) -> None:
        """Write ``parts`` one after the other without joining them."""
        ...

    async def until_writable(self) -> None:
        """Wait while ``write_paused``."""
        ...

    def default_headers(self) -> bytes:
        """Return the header lines that every reply has, such as Date and Server."""
        ...

    def reply_complete(self, request: ServerRequest) -> None:
        """Go on with the next request: the reply of ``request`` was written."""
        ...

    def close_truncated(self, *, reset: bool) -> None:
        """Close behind an incomplete reply.

        ``reset``: at once and by a TCP reset, because a FIN would mark the end of the reply.
        """
        ...


class ServerRequest:
    """A request and its reply. ``target`` is as it stood on the request line.

    Made when the head of the request is complete: ``accepted_at`` is that time (``time.monotonic``, seconds).
    """

    # Defaults of the class: a value that most requests never set costs them nothing.
    #: The connection stays open after the reply (RFC 9112, section 9.3).
    persistent = True
    over_connection_limit = False
    #: The query of the target with its question mark.
    query = b""
    disconnected = False
    started = False
    replied = False
    _on_disconnect: Callable[[GatewayError], None] | None = None
    _disconnect_reason: GatewayError | None = None
    #: The head of the reply until it is sent.
    _head = b""
    _chunked = False
    _until_close = False

    def __init__(
        self, connection: ReplyConnection, method: bytes, target: bytes, headers: Headers, http11: bool
    ) -> None:
        self.wire = connection
        self.method = method
        self.target = target
        self.headers = headers
        self.accepted_at = time.monotonic()
        self.http11 = http11
        self.body = RequestBody(connection)

    # -- called by the connection

    @property
    def has_disconnect_callback(self) -> bool:
        """True if an exchange will end when the client disconnects."""
        return self._on_disconnect is not None

    def disconnect(self, reason: GatewayError | None = None) -> None:
        """Tell the handler that the client disconnected, or that the gateway closed the connection because of
        ``reason``."""
        if self.replied or self.disconnected:
            return
        self.disconnected = self.body.disconnected = True
        self._disconnect_reason = reason
        self.body.notify()
        if self._on_disconnect is not None:
            self._on_disconnect(self._disconnect_error())

    # -- called by the handler

    def read_body(self, limit: int) -> Coroutine[Any, Any, bytes]:
        """Return the complete request body: see ``RequestBody.read``."""
        return self.body.read(limit)

    async def until_over(self) -> None:
        """Return once the client disconnected or was sent its complete reply."""
        while not self.disconnected and not self.replied:
            await self.body.changed()

    def on_disconnect(self, callback: Callable[[GatewayError], None]) -> None:
        """Call ``callback`` once, with the reason, if the client disconnects before ``ignore_disconnect``."""
        self._on_disconnect = callback
        if self.disconnected:
            callback(self._disconnect_error())

    def ignore_disconnect(self) -> None:
        """Forget the callback of ``on_disconnect``."""
        self._on_disconnect = None

    async def reply(self, status: int, headers: Headers, body: bytes, *, close: bool = False) -> None:
        """Send a complete reply with its Content-Length; ``close`` ends the connection after it."""
        if self.disconnected:
            raise self._disconnect_error()
        self.started = True
        more = self.wire.default_headers()
        if close:
            self.persistent = False
        if not self.persistent:
            more += encode.CLOSE
        elif not self.http11:
            more += encode.KEEP_ALIVE
        data = encode.complete_reply(status, headers, more, body)
        if self.method == b"HEAD" and body:
            data = data[: -len(body)]
        self.wire.write(data)
        self.replied = True
        self.body.notify()
        self.wire.reply_complete(self)

    def start(self, status: int, headers: Headers) -> None:
        """Commit the reply. Its head is sent with the first bytes of the body, or by ``flush``."""
        if self.disconnected:
            raise self._disconnect_error()
        self.started = True
        more = self.wire.default_headers()
        names = [name for name, _ in headers]
        if b"content-length" not in names and status not in NO_BODY:
            if self.http11:
                self._chunked = True
                more += encode.CHUNKED
            else:
                self.persistent = False
                self._until_close = True
        if b"connection" in names and (b"connection", b"close") in headers:
            self.persistent = False
        elif not self.persistent:
            more += encode.CLOSE
        elif not self.http11:
            more += encode.KEEP_ALIVE
        self._head = encode.head(status, headers, more)

    async def flush(self) -> None:
        """Send the head alone, because no bytes of the body are available yet."""
        if self.disconnected:
            raise self._disconnect_error()
        if self._head:
            self.wire.write(self._head)
            self._head = b""

    async def send(self, data: bytes) -> None:
        """Send body bytes, at least one; wait while the client does not read them."""
        if self.disconnected:
            raise self._disconnect_error()
        size = len(data)
        if size >= LARGE:
            self._send_large(data, size, b"")
        else:
            self.wire.write(self._head + (encode.CHUNK % (size, data) if self._chunked else data))
        self._head = b""
        if self.wire.write_paused:
            await self.wire.until_writable()

    async def finish(self, data: bytes = b"") -> None:
        """Send ``data`` and the end of the body."""
        if self.disconnected:
            raise self._disconnect_error()
        if self.method == b"HEAD":
            data = b""
        size = len(data)
        if size >= LARGE:
            self._send_large(data, size, encode.LAST_CHUNK)
        else:
            if self._chunked and self.method != b"HEAD":
                data = encode.CHUNK % (size, data) + encode.LAST_CHUNK if data else encode.LAST_CHUNK
            if self._head or data:
                self.wire.write(self._head + data)
        self._head = b""
        self.replied = True
        self.body.notify()
        self.wire.reply_complete(self)

    def truncate(self) -> None:
        """End the reply so that the client sees that it is incomplete."""
        if not self.replied and not self.disconnected:
            self.replied = True
            if self._head:
                self.wire.write(self._head)
            self.wire.close_truncated(reset=self._until_close)

    # -- internals

    def _send_large(self, data: bytes, size: int, end: bytes) -> None:
        """Send ``data`` and its framing without joining them; ``end`` ends a chunked body."""
        if self._chunked:
            self.wire.write_parts((self._head + encode.CHUNK_SIZE % size, data, encode.CHUNK_END + end))
        else:
            self.wire.write_parts((self._head, data) if self._head else (data,))

    def _disconnect_error(self) -> GatewayError:
        return self._disconnect_reason or Cancelled("the client disconnected")
