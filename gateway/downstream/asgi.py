"""ASGI applications on our own listener: for every request that is not for a generate handler.

Owns: the scope, the two ASGI callables, and the reply to a request whose application fails. Must never enter:
framing, routes. (The opposite direction, a handler on another ASGI server, is ``asgi_client``.)
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

from gateway.downstream import encode
from gateway.downstream.request import ServerRequest
from gateway.errors import Cancelled

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


async def serve(app: AsgiApp, request: ServerRequest, addresses: Mapping[str, Any]) -> None:
    """Let ``app`` answer ``request`` and end the request in any case. ``addresses`` as in ``scope_of``."""
    asgi = AsgiRequest(request)
    try:
        await app(scope_of(request, addresses), asgi.receive, asgi.send)
    except Cancelled:
        return
    except Exception:  # noqa: BLE001 - the edge of the control plane: no traceback may reach a client
        log.exception("a fault of the gateway ended a control request")
    if not request.started and not request.disconnected:
        headers, body = encode.failure(500, "internal error of the gateway")
        await request.reply(500, headers, body)
    request.truncate()


def scope_of(request: ServerRequest, addresses: Mapping[str, Any]) -> dict[str, Any]:
    """Return the HTTP scope. ``addresses`` holds ``client``, ``server`` and ``scheme``."""
    raw_path, _, query = request.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1" if request.http11 else "1.0",
        "method": request.method.decode("ascii"),
        "path": path_of(raw_path),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": list(request.headers),
        "state": {},
        **addresses,
    }


def path_of(raw_path: bytes) -> str:
    """Return the path with its escapes decoded."""
    return unquote(raw_path.decode("latin-1"))


class AsgiRequest:
    """The ASGI callables ``receive`` and ``send`` of one request."""

    def __init__(self, request: ServerRequest) -> None:
        self._request = request
        self._body_read = False

    async def receive(self) -> Message:
        """Return the parts of the request body, then a disconnect."""
        if not self._body_read:
            data, more = await self._request.body.read_part()
            if not self._request.disconnected:
                self._body_read = not more
                return {"type": "http.request", "body": data, "more_body": more}
        await self._request.until_over()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a part of the reply. The reply to a HEAD request ends with its head, whatever follows."""
        if message["type"] == "http.response.start":
            lines = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
            self._request.start(message["status"], lines)
        elif message.get("more_body") and self._request.method != b"HEAD":
            if body := message.get("body"):
                await self._request.send(body)
        elif not self._request.replied:
            await self._request.finish(message.get("body", b""))
