"""The control plane behind a guard.

Owns: asking for a key before anything else happens, and telling a route who called. Must never enter: which
path is of which realm, a route. Where no key is configured, there is no door.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gateway.downstream.asgi import AsgiApp, Receive, Scope, Send
from gateway.errors import GatewayError, Unauthorized
from gateway.formats.contract import ErrorReply, Headers
from gateway.formats.failures import error_reply
from gateway.security.guard import AccessScope, Guard, challenge

log = logging.getLogger(__name__)

Render = Callable[[GatewayError], ErrorReply]

_CALLER = "tito-gateway.caller"


class Caller(Protocol):
    """Who called a route, as far as its keys tell."""

    def may(self, scope: AccessScope) -> bool:
        """Whether a route of ``scope`` would be open to it."""
        ...

    def require(self, scope: AccessScope) -> None:
        """Raises Unauthorized unless it ``may``."""
        ...


class _Anybody:
    """Where no key is configured, everybody may do everything."""

    def may(self, scope: AccessScope) -> bool:
        return True

    def require(self, scope: AccessScope) -> None:
        return None


class _Known:
    def __init__(self, guard: Guard, headers: Headers) -> None:
        self._guard = guard
        self._headers = headers

    def may(self, scope: AccessScope) -> bool:
        return self._guard.admits(scope, self._headers)

    def require(self, scope: AccessScope) -> None:
        self._guard.admit(scope, self._headers)


ANYBODY = _Anybody()


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Who sent the request of this scope."""
    caller: Caller = scope.get(_CALLER, ANYBODY)
    return caller


class AuthMiddleware:
    """``app`` for those whom ``guard`` admits. ``dialects`` has the paths that spell errors their own way."""

    def __init__(
        self,
        app: AsgiApp,
        guard: Guard,
        scope_of: Callable[[str], AccessScope],
        dialects: Mapping[str, Render],
    ) -> None:
        self._app = app
        self._guard = guard
        self._scope_of = scope_of
        self._dialects = dialects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers = scope["path"], scope["headers"]
        try:
            admitted = self._guard.admit(self._scope_of(path), headers)
        except Unauthorized as error:
            log.info("refused for want of a valid key: %s %r", scope["method"], path[:200])
            return await _tell(self._dialects.get(path, _render), error, send)
        caller = _Known(self._guard, headers)
        await self._app({**scope, "headers": admitted, _CALLER: caller}, receive, send)


def _render(error: GatewayError) -> ErrorReply:
    """As the workers API tells of errors, and most routes behind the door."""
    told = {"message": error.message, "type": "Unauthorized", "code": error.code}
    return error_reply(error, json.dumps({"error": told}).encode())


async def _tell(render: Render, error: GatewayError, send: Send) -> None:
    reply = render(error)
    length = (b"content-length", b"%d" % len(reply.body))
    headers = [*reply.headers, *challenge(error), length]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
