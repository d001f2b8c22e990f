"""The client's side of an exchange: what the handler asks of it, and how ASGI gives that.

Owns: the Client protocol and its ASGI form (``gateway.downstream`` has the one that costs less). Must never
enter: a dialect, workers, metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from io import BytesIO
from typing import Any, Protocol

from gateway.errors import Cancelled, GatewayError, RequestTooLarge
from gateway.formats.base import Headers, header

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Statuses whose replies have neither a body nor a length.
NO_BODY = frozenset({204, 304})
_CLOSE = (b"connection", b"close")

#: Seconds after which a client is watched for leaving. Most replies are whole before, and cost no watch.
WATCH_AFTER = 0.05


class Client(Protocol):
    """The client of one exchange. Sending to one that is known to have left raises why it has: Cancelled, or
    ReplyUnread where it is given up as it does not read."""

    @property
    def headers(self) -> Headers:
        """The request's header lines, names in lower case."""
        ...

    @property
    def crowded(self) -> bool:
        """Whether there are so many connections that this one is for what needs no worker."""
        ...

    @property
    def query(self) -> bytes:
        """What follows on the path in the request's target, question mark and all; b"" without it."""
        ...

    async def body(self, limit: int) -> bytes:
        """The request body, ``limit`` bytes at most. Raises RequestTooLarge, BodyTimeout once it stopped
        coming, and Cancelled on leaving."""
        ...

    def watch(self, left: Callable[[GatewayError], None]) -> None:
        """Call ``left`` once, with the reason, if the client leaves before ``unwatch``; the body has been
        read."""
        ...

    def unwatch(self) -> None: ...

    async def reply(self, status: int, headers: Headers, body: bytes, *, close: bool = False) -> None:
        """Send a whole reply, with the length of ``body``. ``close``: the connection is not used again."""
        ...

    def start(self, status: int, headers: Headers) -> None:
        """Commit the reply. Its head leaves with the first bytes of the body, or by ``flush``."""
        ...

    async def flush(self) -> None:
        """Let the head go: body bytes did not follow at once."""
        ...

    async def more(self, data: bytes) -> None:
        """Send body bytes, at least one; waits while the client does not take them."""
        ...

    async def last(self, data: bytes) -> None:
        """Send the end of the body."""
        ...

    def cut(self) -> None:
        """Leave the reply visibly unfinished."""
        ...


class AsgiClient:
    """A Client on any ASGI server."""

    crowded = False

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers: Headers = scope["headers"]
        query: bytes = scope.get("query_string", b"")
        self.query = b"?" + query if query else b""
        self._receive = receive
        self._send = send
        self._head: Message | None = None
        self._watch: Watch | None = None

    async def body(self, limit: int) -> bytes:
        return await read_body(self._receive, self.headers, limit)

    def watch(self, left: Callable[[GatewayError], None]) -> None:
        self._watch = Watch(self._receive, left)

    def unwatch(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    async def reply(self, status: int, headers: Headers, body: bytes, *, close: bool = False) -> None:
        lines = [*headers, *_length(status, body), *([_CLOSE] if close else [])]
        self.start(status, lines)
        await self.last(body)

    def start(self, status: int, headers: Headers) -> None:
        self._head = {"type": "http.response.start", "status": status, "headers": headers}

    async def flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            await self._send(head)

    async def more(self, data: bytes) -> None:
        await self.flush()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def last(self, data: bytes) -> None:
        await self.flush()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    def cut(self) -> None:
        """Nothing to do: a server closes the connection of an application that did not finish its reply."""


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """The request body, ``limit`` bytes at most. Raises RequestTooLarge, and Cancelled on leaving."""
    announced = header(headers, b"content-length")
    if announced is not None and _number(announced) > limit:
        raise _too_large(limit)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        return _within(message.get("body", b""), limit)
    # Put where it stays as it comes: to join a long one at the end would take long.
    whole = BytesIO()
    size = 0
    while message["type"] == "http.request":
        size += whole.write(message.get("body", b""))
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return whole.getvalue()
        message = await receive()
    raise Cancelled("the client left before its request was whole")


def _within(body: bytes, limit: int) -> bytes:
    if len(body) > limit:
        raise _too_large(limit)
    return body


def _number(announced: bytes) -> float:
    """What a Content-Length says; 0 if it is no number, which the server in front has refused already."""
    try:
        return float(announced)  # of any length, where int() has a limit
    except ValueError:
        return 0.0


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"the request body is over the limit of {limit} bytes")


class Watch:
    """Tells once, through ``left``, that the client is gone. The request body must have been read."""

    def __init__(self, receive: Receive, left: Callable[[GatewayError], None]) -> None:
        self._receive = receive
        self._left = left
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(WATCH_AFTER, self._start)

    def stop(self) -> None:
        """End the watch; the client's leaving no longer matters."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        # Not gateway.loop.tasks.Tasks: it is held and ended by this watch alone, whose exchange holds it.
        self._task = self._loop.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left(Cancelled("the client left"))


def _length(status: int, body: bytes) -> Headers:
    return [] if status in NO_BODY else [(b"content-length", b"%d" % len(body))]


class Background(Protocol):
    """What runs beside the exchanges, for as long as the application does."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


async def lifespan(receive: Receive, send: Send, background: Background) -> None:
    """The lifespan protocol around ``background``."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await background.start()
            await send({"type": "lifespan.startup.complete"})
        else:
            await background.stop()
            return await send({"type": "lifespan.shutdown.complete"})
