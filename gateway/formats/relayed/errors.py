"""Failures as the OpenAI API tells of them.

Owns: the envelope, as a reply and as the last event of a stream. Must never enter: deciding what is an error.
"""

from __future__ import annotations

import json

from gateway.errors import GatewayError, InvalidRequest, UnknownModel
from gateway.formats.base import ErrorReply

DONE = b"data: [DONE]\n\n"


def render(error: GatewayError) -> ErrorReply:
    """The error reply."""
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    return ErrorReply(error.status, headers, _document(error))


def in_band(error: GatewayError) -> bytes:
    """The error event and the end of a stream."""
    return b"data: %b\n\n%b" % (_document(error), DONE)


def _document(error: GatewayError) -> bytes:
    envelope = {
        "message": error.message,
        "type": "invalid_request_error" if error.status < 500 else "server_error",
        "param": _param(error),
        "code": error.status,
    }
    return json.dumps({"error": envelope}, separators=(",", ":")).encode()


def _param(error: GatewayError) -> str | None:
    if isinstance(error, InvalidRequest):
        return error.param
    return "model" if isinstance(error, UnknownModel) else None
