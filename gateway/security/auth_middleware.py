"""ASGI middleware that requires an API key.

Owns: checking the key before the application is called, and giving routes access to the caller's rights. Must
never enter: which path has which scope, a route. It is not installed where no key is configured.
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
    """The caller of a route, known by its key."""

    def may(self, scope: AccessScope) -> bool:
        """Return True if the caller may call routes of ``scope``."""
        ...

    def require(self, scope: AccessScope) -> None:
        """Raise Unauthorized unless the caller may call routes of ``scope``."""
        ...


class _AnyCaller:
    """The caller where no key is configured: everything is allowed."""

    def may(self, scope: AccessScope) -> bool:
        return True

    def require(self, scope: AccessScope) -> None:
        return None


class _KeyCaller:
    def __init__(self, guard: Guard, headers: Headers) -> None:
        self._guard = guard
        self._headers = headers

    def may(self, scope: AccessScope) -> bool:
        return self._guard.admits(scope, self._headers)

    def require(self, scope: AccessScope) -> None:
        self._guard.admit(scope, self._headers)


ANY_CALLER = _AnyCaller()


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Return the caller of a request, given its ASGI scope."""
    caller: Caller = scope.get(_CALLER, ANY_CALLER)
    return caller


class AuthMiddleware:
    """An ASGI application that passes the requests which ``guard`` admits to ``app``.

    ``renderers`` has the paths with an error format of their own; ``scope_of`` returns the scope of a path.
    """

    def __init__(
        self,
        app: AsgiApp,
        guard: Guard,
        scope_of: Callable[[str], AccessScope],
        renderers: Mapping[str, Render],
    ) -> None:
        self._app = app
        self._guard = guard
        self._scope_of = scope_of
        self._renderers = renderers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers = scope["path"], scope["headers"]
        try:
            admitted = self._guard.admit(self._scope_of(path), headers)
        except Unauthorized as error:
            log.info("refused without a valid key: %s %r", scope["method"], path[:200])
            return await _send_error(self._renderers.get(path, _render), error, send)
        caller = _KeyCaller(self._guard, headers)
        await self._app({**scope, "headers": admitted, _CALLER: caller}, receive, send)


def _render(error: GatewayError) -> ErrorReply:
    """Render an error in the format of the workers API, and of most routes that require a key."""
    content = {"message": error.message, "type": "Unauthorized", "code": error.code}
    return error_reply(error, json.dumps({"error": content}).encode())


async def _send_error(render: Render, error: GatewayError, send: Send) -> None:
    reply = render(error)
    length = (b"content-length", b"%d" % len(reply.body))
    headers = [*reply.headers, *challenge(error), length]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
