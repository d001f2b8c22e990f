"""Errors in the form of the OpenAI API.

Owns: the error object, as a reply and as the last event of a stream. Must never enter: the decision what is
an error.
"""

from __future__ import annotations

import json

from gateway.errors import GatewayError
from gateway.formats.contract import ErrorReply
from gateway.formats.failures import error_event, error_reply, param_of

_RATE_LIMIT = 429


def render(error: GatewayError) -> ErrorReply:
    """Return the error reply."""
    return error_reply(error, _document(error))


def in_band(error: GatewayError) -> bytes:
    """Return the error event and the end of the stream."""
    return error_event(_document(error))


def _document(error: GatewayError) -> bytes:
    envelope = {
        "message": error.message,
        "type": _type(error.status),
        "param": param_of(error),
        "code": error.status,
    }
    return json.dumps({"error": envelope}, separators=(",", ":")).encode()


def _type(status: int) -> str:
    if status == _RATE_LIMIT:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
