"""A ``Client`` on any ASGI server.

Owns: the ASGI form of what the handler asks of a client. Requests to our own listener do not pass here:
for them the handler gets a ``gateway.downstream.request.ServerRequest``. Must never enter: a dialect,
workers, metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from io import BytesIO

from gateway.downstream.asgi import Message, Receive, Scope, Send
from gateway.downstream.client import NO_BODY
from gateway.errors import Cancelled, GatewayError, RequestTooLarge
from gateway.formats.contract import Headers, header

_CLOSE = (b"connection", b"close")

#: Seconds until a task waits for the disconnect of a client. Most replies are complete before and need none.
WATCH_AFTER = 0.05


class AsgiClient:
    """The client of one exchange on an ASGI server."""

    over_connection_limit = False

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.accepted_at = time.monotonic()
        self.headers: Headers = scope["headers"]
        query: bytes = scope.get("query_string", b"")
        self.query = b"?" + query if query else b""
        self._receive = receive
        self._send = send
        self._head: Message | None = None
        self._watch: DisconnectWatch | None = None

    async def read_body(self, limit: int) -> bytes:
        return await read_body(self._receive, self.headers, limit)

    def on_disconnect(self, callback: Callable[[GatewayError], None]) -> None:
        self._watch = DisconnectWatch(self._receive, callback)

    def ignore_disconnect(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    async def reply(self, status: int, headers: Headers, body: bytes, *, close: bool = False) -> None:
        lines = list(headers)
        if status not in NO_BODY:
            lines.append((b"content-length", b"%d" % len(body)))
        if close:
            lines.append(_CLOSE)
        self.start(status, lines)
        await self.finish(body)

    def start(self, status: int, headers: Headers) -> None:
        self._head = {"type": "http.response.start", "status": status, "headers": headers}

    async def flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            await self._send(head)

    async def send(self, data: bytes) -> None:
        await self.flush()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes) -> None:
        await self.flush()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    def truncate(self) -> None:
        """Do nothing: an ASGI server closes the connection of an application that does not finish."""


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """Return the complete request body.

    Raises RequestTooLarge above ``limit`` bytes, and Cancelled if the client disconnects.
    """
    length = header(headers, b"content-length")
    if length is not None and _number(length) > limit:
        raise _too_large(limit)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        return body
    # Gathered while it arrives: to join a large body at its end would block the event loop.
    gathered = BytesIO()
    size = 0
    while message["type"] == "http.request":
        size += gathered.write(message.get("body", b""))
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return gathered.getvalue()
        message = await receive()
    raise Cancelled("the client disconnected before its request was complete")


def _number(content_length: bytes) -> float:
    """Return the value of a Content-Length; 0 if it is no number, which the server has refused already."""
    try:
        return float(content_length)  # accepts any number of digits, unlike int()
    except ValueError:
        return 0.0


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"the request body is over the limit of {limit} bytes")


class DisconnectWatch:
    """Calls ``callback`` once if the client disconnects. The request body must have been read."""

    def __init__(self, receive: Receive, callback: Callable[[GatewayError], None]) -> None:
        self._receive = receive
        self._callback = callback
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(WATCH_AFTER, self._start)

    def stop(self) -> None:
        """End the watch."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        # Not gateway.loop.tasks.Tasks: this watch alone holds and ends the task.
        self._task = self._loop.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._callback(Cancelled("the client disconnected"))
