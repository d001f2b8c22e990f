"""One request on one client connection, and the way its reply goes out.

Owns: the request's body, the client's leaving, and the framing of the reply. Must never enter: parsing, a
dialect, ASGI. The handler sees a Call as ``gateway.downstream.Client``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.drive import Signal
from gateway.errors import Cancelled, RequestTooLarge
from gateway.formats.base import Headers, header
from gateway.listener import wire


class Wire(Protocol):
    """What a call needs of its connection."""

    def write(self, data: bytes) -> None: ...

    async def drained(self) -> None:
        """Wait while the client does not take what was written."""
        ...

    def common_lines(self) -> bytes:
        """Date and server, as header lines."""
        ...

    def replied(self, call: Call) -> None:
        """The reply of ``call`` is whole."""
        ...

    def cut(self, *, reset: bool) -> None:
        """Close after what was written, so that an unfinished reply is seen to be unfinished.

        ``reset``: at once and by a reset, as the end of the connection would be the end of the reply.
        """
        ...


class Call:
    """One request and its reply. ``target`` is as it stood on the request line."""

    __slots__ = (
        "_chunked",
        "_changed",
        "_head",
        "_on_left",
        "_parts",
        "_size",
        "_until_close",
        "complete",
        "expects_continue",
        "headers",
        "http11",
        "keep_alive",
        "left",
        "method",
        "replied",
        "started",
        "target",
        "wire",
    )

    def __init__(
        self, connection: Wire, method: bytes, target: bytes, headers: Headers, http11: bool
    ) -> None:
        self.wire = connection
        self.method = method
        self.target = target
        self.headers = headers
        self.http11 = http11
        self.keep_alive = True
        self.expects_continue = False
        self.complete = False
        self.left = False
        self.started = False
        self.replied = False
        self._on_left: Callable[[], None] | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._chunked = False
        self._until_close = False
        self._changed = Signal()

    # -- what the connection tells

    @property
    def held(self) -> int:
        """Body bytes that nobody took yet."""
        return self._size

    def took(self, data: bytes) -> None:
        """Body bytes came; those of a request that has its reply already are dropped."""
        if not self.replied:
            self._parts.append(data)
            self._size += len(data)

    def whole(self) -> None:
        """The request is complete."""
        self.complete = True

    @property
    def announced(self) -> int:
        """The request's Content-Length, 0 without one."""
        return int(header(self.headers, b"content-length") or 0)

    def told(self) -> None:
        """Act on what came; called once nothing more is parsed."""
        self._changed.fire()

    def lost(self) -> None:
        """The client is gone."""
        if self.replied or self.left:
            return
        self.left = True
        self._changed.fire()
        if self._on_left is not None:
            self._on_left()

    # -- what the handler asks

    async def body(self, limit: int) -> bytes:
        """The whole request body. Raises RequestTooLarge over ``limit`` bytes, and Cancelled on leaving."""
        if self.announced > limit:
            raise RequestTooLarge(f"the request body is over the limit of {limit} bytes")
        self._ask_for_body()
        while not self.complete and self._size <= limit:
            if self.left:
                raise Cancelled("the client left before its request was whole")
            await self._changed
        if self._size > limit:
            self._parts.clear()
            raise RequestTooLarge(f"the request body is over the limit of {limit} bytes")
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        return body

    async def part(self) -> tuple[bytes, bool]:
        """The next body bytes and whether more will come; (b"", False) once it is over or the client left."""
        self._ask_for_body()
        while not self._parts and not self.complete and not self.left:
            await self._changed
        data = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return data, not self.complete and not self.left

    async def departure(self) -> None:
        """Return when the client is gone or has its whole reply."""
        while not self.left and not self.replied:
            await self._changed

    def watch(self, left: Callable[[], None]) -> None:
        """Call ``left`` once if the client leaves before ``unwatch``."""
        self._on_left = left
        if self.left:
            left()

    def unwatch(self) -> None:
        self._on_left = None

    async def start(self, status: int, headers: Headers, *, hold: bool = False) -> None:
        """Commit the reply. ``hold``: its head leaves together with the first bytes of the body."""
        self._check()
        self.started = True
        more = self.wire.common_lines()
        if not wire.has_length(status, headers):
            if self.http11:
                self._chunked = True
                more += wire.CHUNKED
            else:
                self.keep_alive = False
                self._until_close = True
        if any(name == b"connection" and value == b"close" for name, value in headers):
            self.keep_alive = False
        elif not self.keep_alive:
            more += wire.CLOSE
        elif not self.http11:
            more += b"connection: keep-alive\r\n"
        self._head = wire.head(status, headers, more)
        if not hold:
            self.wire.write(self._head)
            self._head = b""

    async def flush(self) -> None:
        """Let a held head go."""
        if self._head:
            self._check()
            self.wire.write(self._head)
            self._head = b""

    async def more(self, data: bytes) -> None:
        """Send body bytes, at least one; waits while the client does not take them."""
        self._check()
        self.wire.write(self._head + (wire.chunk(data) if self._chunked else data))
        self._head = b""
        await self.wire.drained()

    async def last(self, data: bytes = b"") -> None:
        """Send the end of the body."""
        self._check()
        if self.method == b"HEAD":
            data = b""
        elif self._chunked:
            data = wire.chunk(data) + wire.LAST_CHUNK if data else wire.LAST_CHUNK
        if self._head or data:
            self.wire.write(self._head + data)
        self._head = b""
        self.replied = True
        self._changed.fire()
        self.wire.replied(self)

    def cut(self) -> None:
        """End an unfinished reply so that the client sees it."""
        if not self.replied and not self.left:
            self.replied = True
            if self._head:
                self.wire.write(self._head)
            self.wire.cut(reset=self._until_close)

    # -- internals

    def _check(self) -> None:
        if self.left:
            raise Cancelled("the client left")

    def _ask_for_body(self) -> None:
        """Tell a client that waits for it that the body is wanted."""
        if self.expects_continue and not self.complete:
            self.expects_continue = False
            self.wire.write(wire.CONTINUE)
