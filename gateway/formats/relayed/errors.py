"""Errors in the form of the API that a route or a stream speaks.

Owns: the error object, as a reply and as the last event of a stream. Must never enter: the decision what is
an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.errors import GatewayError
from gateway.formats.contract import ErrorReply
from gateway.formats.failures import error_event, error_reply, param_of
from gateway.formats.relayed.apis import StreamApi

_RATE_LIMIT = 429
_DEFAULT_STATUS = 500
#: The types of Anthropic's errors that have a status of their own. Others are refusals or the server's fault.
_MESSAGES_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        _RATE_LIMIT: "rate_limit_error",
    }
)
#: The statuses of errors that are named by a word, as both APIs of events name them.
_STATUSES: Mapping[str, int] = MappingProxyType(
    {
        **{word: status for status, word in _MESSAGES_TYPES.items()},
        "invalid_request_error": 400,
        "invalid_prompt": 400,
        "rate_limit_exceeded": _RATE_LIMIT,
        "overloaded_error": 503,  # Anthropic's own status for it, 529, is not registered
        "timeout_error": 504,
    }
)


def render(error: GatewayError, api: StreamApi | None = None) -> ErrorReply:
    """Return the error reply of a route that speaks ``api``; None: any other route."""
    envelope = _messages_envelope(error) if api is StreamApi.MESSAGES else {"error": _object(error)}
    return error_reply(error, _encoded(envelope))


def in_band(error: GatewayError, api: StreamApi | None, number: int = 0) -> bytes:
    """Return the event that ends a stream of ``api`` with an error; b"" if the API is not known.

    ``number`` is the next sequence number of a stream whose events are numbered.
    """
    if api is StreamApi.CHUNKS:
        return error_event(_encoded({"error": _object(error)}))
    if api is StreamApi.MESSAGES:
        return b"event: error\ndata: %b\n\n" % _encoded(_messages_envelope(error))
    if api is StreamApi.RESPONSES:
        event = {
            "type": "error",
            "code": error.code,
            "message": error.message,
            "param": param_of(error),
            "sequence_number": number,
            "error": _object(error),  # where client libraries look for it
        }
        return b"event: error\ndata: %b\n\n" % _encoded(event)
    return b""


def status_of(error: Any) -> int:
    """Return the status of an engine's error object inside a reply with status 200."""
    if not isinstance(error, dict):
        return _DEFAULT_STATUS
    code = error.get("code")
    if type(code) is int and 400 <= code < 600:
        return code
    words = (word for word in (code, error.get("type")) if isinstance(word, str))
    return next((_STATUSES[word] for word in words if word in _STATUSES), _DEFAULT_STATUS)


def _object(error: GatewayError) -> Mapping[str, Any]:
    return {
        "message": error.message,
        "type": _type(error.status),
        "param": param_of(error),
        "code": error.status,
    }


def _type(status: int) -> str:
    if status == _RATE_LIMIT:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _messages_envelope(error: GatewayError) -> Mapping[str, Any]:
    other = "invalid_request_error" if error.status < 500 else "api_error"
    word = _MESSAGES_TYPES.get(error.status, other)
    return {"type": "error", "error": {"type": word, "message": error.message}}


def _encoded(envelope: Mapping[str, Any]) -> bytes:
    return json.dumps(envelope, separators=(",", ":")).encode()
