"""A call as an ASGI application sees it: for everything that is not a generate request.

Owns: the scope, the two ASGI callables, and what becomes of a call whose application fails. Must never enter:
framing, routes.
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


async def serve(app: AsgiApp, call: ServerRequest, addresses: Mapping[str, Any]) -> None:
    """Have ``app`` answer ``call``; whatever it does, the call ends. ``addresses`` as in ``scope_of``."""
    asgi = AsgiCall(call)
    try:
        await app(scope_of(call, addresses), asgi.receive, asgi.send)
    except Cancelled:
        return
    except Exception:  # noqa: BLE001 - the edge of the control plane: no traceback may reach a client
        log.exception("a fault of the gateway ended a control request")
    if not call.started and not call.disconnected:
        headers, body = encode.failure(500, "internal error of the gateway")
        await call.reply(500, headers, body)
    call.truncate()


def scope_of(call: ServerRequest, addresses: Mapping[str, Any]) -> dict[str, Any]:
    """The HTTP scope. ``addresses`` holds ``client``, ``server`` and ``scheme``."""
    raw_path, _, query = call.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1" if call.http11 else "1.0",
        "method": call.method.decode("ascii"),
        "path": path_of(raw_path),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": list(call.headers),
        "state": {},
        **addresses,
    }


def path_of(raw_path: bytes) -> str:
    """The path that is meant by one with escapes."""
    return unquote(raw_path.decode("latin-1"))


class AsgiCall:
    """``receive`` and ``send`` of one call."""

    def __init__(self, call: ServerRequest) -> None:
        self._call = call
        self._read = False

    async def receive(self) -> Message:
        """The request's parts, then a disconnect."""
        if not self._read:
            data, more = await self._call.body.read_part()
            if not self._call.disconnected:
                self._read = not more
                return {"type": "http.request", "body": data, "more_body": more}
        await self._call.until_over()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Start or go on with the reply. To a HEAD the head is all of it, whatever would follow."""
        if message["type"] == "http.response.start":
            lines = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
            self._call.start(message["status"], lines)
        elif message.get("more_body") and self._call.method != b"HEAD":
            if body := message.get("body"):
                await self._call.send(body)
        elif not self._call.replied:
            await self._call.finish(message.get("body", b""))
