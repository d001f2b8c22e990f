"""A call as an ASGI application sees it: for everything that is not a generate request.

Owns: the scope and the two ASGI callables. Must never enter: framing, routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from gateway.downstream import Message
from gateway.listener.call import Call


def scope_of(call: Call, addresses: Mapping[str, Any]) -> dict[str, Any]:
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

    def __init__(self, call: Call) -> None:
        self._call = call
        self._read = False

    async def receive(self) -> Message:
        """The request's parts, then a disconnect."""
        if not self._read:
            data, more = await self._call.part()
            if not self._call.left:
                self._read = not more
                return {"type": "http.request", "body": data, "more_body": more}
        await self._call.departure()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Start or go on with the reply. To a HEAD the head is all of it, whatever would follow."""
        if message["type"] == "http.response.start":
            lines = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
            self._call.start(message["status"], lines)
        elif message.get("more_body") and self._call.method != b"HEAD":
            if body := message.get("body"):
                await self._call.more(body)
        elif not self._call.replied:
            await self._call.last(message.get("body", b""))
