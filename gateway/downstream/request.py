"""One request on one client connection, and the way its reply goes out.

Owns: the request's body, the client's leaving, and the framing of the reply. Must never enter: parsing, a
dialect, ASGI. The handler sees a Call as ``gateway.downstream.client.Client``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Final, Protocol

from gateway.downstream import encode as wire
from gateway.downstream.client import NO_BODY
from gateway.errors import BodyTimeout, Cancelled, GatewayError, RequestTooLarge
from gateway.formats.base import Headers
from gateway.loop.stepper import Signal

#: A body over this, in bytes, is put together as it comes.
_LONG = 1024 * 1024
#: Of a reply, to copy as many bytes at once would take longer than to send them in parts.
LARGE: Final = 32 * 1024


class Wire(Protocol):
    """What a call needs of its connection."""

    @property
    def full(self) -> bool:
        """Whether the client does not take what was written."""
        ...

    def write(self, data: bytes) -> None: ...

    def write_parts(self, parts: Sequence[bytes]) -> None:
        """The same for what is large: it is not put together."""
        ...

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

    # Defaults of the class: what most calls never set costs none of them.
    keep_alive = True
    crowded = False
    expects_continue = False
    #: What follows on the path in its target, question mark and all.
    query = b""
    #: The request's Content-Length, 0 without one.
    announced = 0
    complete = False
    left = False
    started = False
    replied = False
    _on_left: Callable[[GatewayError], None] | None = None
    _why_left: GatewayError | None = None
    _changed: Signal | None = None
    _size = 0
    _gathered: BytesIO | None = None
    #: Somebody waits for the whole body, which stopped coming.
    _wanted = False
    _late = False
    _head = b""
    _chunked = False
    _until_close = False

    def __init__(
        self, connection: Wire, method: bytes, target: bytes, headers: Headers, http11: bool
    ) -> None:
        self.wire = connection
        self.method = method
        self.target = target
        self.headers = headers
        self.http11 = http11
        self._parts: list[bytes] = []

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
            if self._size > _LONG:
                self._gather()

    def whole(self) -> None:
        """The request is complete."""
        self.complete = True

    def told(self) -> None:
        """Act on what came; called once nothing more is parsed."""
        if self._changed is not None:
            self._changed.fire()

    @property
    def watched(self) -> bool:
        """Whether somebody is to be told of the client's leaving."""
        return self._on_left is not None

    def lost(self, why: GatewayError | None = None) -> None:
        """The client is gone, or as good as gone: then ``why``."""
        if self.replied or self.left:
            return
        self.left = True
        self._why_left = why
        self.told()
        if self._on_left is not None:
            self._on_left(self._gone())

    def stalled(self) -> bool:
        """The body stopped coming, or comes too slowly; False: nobody waits for all of it, so nobody will say
        so."""
        self._late = self._wanted
        self.told()
        return self._late

    # -- what the handler asks

    async def body(self, limit: int) -> bytes:
        """The whole request body. Raises RequestTooLarge over ``limit`` bytes, BodyTimeout once it stopped
        coming, and Cancelled on leaving."""
        if self.announced > limit:
            raise RequestTooLarge(f"the request body is over the limit of {limit} bytes")
        self._ask_for_body()
        while not self.complete and self._size <= limit:
            if self.left:
                raise Cancelled("the client left before its request was whole")
            if self._late:
                raise BodyTimeout("the body of the request stopped coming, or comes too slowly")
            self._wanted = True
            await self._change()
        if self._size > limit:
            self._take()
            raise RequestTooLarge(f"the request body is over the limit of {limit} bytes")
        return self._take()

    async def part(self) -> tuple[bytes, bool]:
        """The next body bytes and whether more will come; (b"", False) once it is over or the client left."""
        self._ask_for_body()
        while not self._size and not self.complete and not self.left:
            await self._change()
        data = self._take()
        return data, not self.complete and not self.left

    async def departure(self) -> None:
        """Return when the client is gone or has its whole reply."""
        while not self.left and not self.replied:
            await self._change()

    def watch(self, left: Callable[[GatewayError], None]) -> None:
        """Call ``left`` once, with the reason, if the client leaves before ``unwatch``."""
        self._on_left = left
        if self.left:
            left(self._gone())

    def unwatch(self) -> None:
        self._on_left = None

    async def reply(self, status: int, headers: Headers, body: bytes, *, close: bool = False) -> None:
        """Send a whole reply, with the length of ``body``. ``close``: the connection is not used again."""
        self._check()
        self.started = True
        more = self.wire.common_lines()
        if close:
            self.keep_alive = False
        if not self.keep_alive:
            more += wire.CLOSE
        elif not self.http11:
            more += wire.KEEP_ALIVE
        self.wire.write(wire.whole(status, headers, more, body))
        self._over()

    def start(self, status: int, headers: Headers) -> None:
        """Commit the reply. Its head leaves with the first bytes of the body, or by ``flush``."""
        self._check()
        self.started = True
        more = self.wire.common_lines()
        names = [name for name, _ in headers]
        if b"content-length" not in names and status not in NO_BODY:
            if self.http11:
                self._chunked = True
                more += wire.CHUNKED
            else:
                self.keep_alive = False
                self._until_close = True
        if b"connection" in names and (b"connection", b"close") in headers:
            self.keep_alive = False
        elif not self.keep_alive:
            more += wire.CLOSE
        elif not self.http11:
            more += wire.KEEP_ALIVE
        self._head = wire.head(status, headers, more)

    async def flush(self) -> None:
        """Let the head go: body bytes did not follow at once."""
        self._check()
        if self._head:
            self.wire.write(self._head)
            self._head = b""

    async def more(self, data: bytes) -> None:
        """Send body bytes, at least one; waits while the client does not take them."""
        self._check()
        size = len(data)
        if size >= LARGE:
            self._send_large(data, size, b"")
        else:
            self.wire.write(self._head + (wire.CHUNK % (size, data) if self._chunked else data))
        self._head = b""
        if self.wire.full:
            await self.wire.drained()

    async def last(self, data: bytes = b"") -> None:
        """Send the end of the body."""
        self._check()
        if self.method == b"HEAD":
            data = b""
        size = len(data)
        if size >= LARGE:
            self._send_large(data, size, wire.LAST_CHUNK)
        else:
            if self._chunked and self.method != b"HEAD":
                data = wire.CHUNK % (size, data) + wire.LAST_CHUNK if data else wire.LAST_CHUNK
            if self._head or data:
                self.wire.write(self._head + data)
        self._head = b""
        self._over()

    def cut(self) -> None:
        """End an unfinished reply so that the client sees it."""
        if not self.replied and not self.left:
            self.replied = True
            if self._head:
                self.wire.write(self._head)
            self.wire.cut(reset=self._until_close)

    # -- internals

    def _send_large(self, data: bytes, size: int, end: bytes) -> None:
        """``data`` and what is before and behind it, not put together. ``end`` ends a chunked body."""
        if self._chunked:
            self.wire.write_parts((self._head + wire.CHUNK_SIZE % size, data, wire.CHUNK_END + end))
        else:
            self.wire.write_parts((self._head, data) if self._head else (data,))

    def _gather(self) -> None:
        """Put what came of a long body where it stays: to join 64 MiB at the end would take 50 ms."""
        if self._gathered is None:
            self._gathered = BytesIO()
        self._gathered.writelines(self._parts)
        self._parts.clear()

    def _take(self) -> bytes:
        """All that is held, which is held no longer."""
        self._size = 0
        if self._gathered is not None:
            self._gather()
            gathered, self._gathered = self._gathered, None
            return gathered.getvalue()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        return data

    def _over(self) -> None:
        self.replied = True
        self.told()
        self.wire.replied(self)

    async def _change(self) -> None:
        """Wait for something to happen. Few calls ever wait, so the signal is made when one does."""
        if self._changed is None:
            self._changed = Signal()
        await self._changed

    def _check(self) -> None:
        if self.left:
            raise self._gone()

    def _gone(self) -> GatewayError:
        return self._why_left or Cancelled("the client left")

    def _ask_for_body(self) -> None:
        """Tell a client that waits for it that the body is wanted."""
        if self.expects_continue and not self.complete:
            self.expects_continue = False
            self.wire.write(wire.CONTINUE)
