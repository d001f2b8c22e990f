"""Failures in the engine's own words: the error reply, and the error event inside a stream.

Owns: the envelope and its ``type`` names. Must never enter: deciding what is an error.
"""

from __future__ import annotations

import json

from gateway.errors import GatewayError, InvalidRequest, UnknownModel
from gateway.formats.base import ErrorReply

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    413: "RequestEntityTooLargeError",
    422: "UnprocessableEntityError",
    503: "ServiceUnavailableError",
}
_DONE = b"data: [DONE]\n\n"


def render(error: GatewayError) -> ErrorReply:
    """The error reply, spelled compactly as the engine does."""
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    body = json.dumps({"error": _envelope(error)}, separators=(",", ":"))
    return ErrorReply(error.status, headers, body.encode())


def in_band(error: GatewayError) -> bytes:
    """The error event and the end of a stream, spelled with blanks as the engine does."""
    return b"data: %b\n\n%b" % (json.dumps({"error": _envelope(error)}).encode(), _DONE)


def _envelope(error: GatewayError) -> dict[str, str | int | None]:
    return {
        "message": error.message,
        "type": _type(error),
        "param": _param(error),
        "code": error.status,
    }


def _type(error: GatewayError) -> str:
    fallback = _TYPES[400] if error.status < 500 else "InternalServerError"
    return _TYPES.get(error.status, fallback)


def _param(error: GatewayError) -> str | None:
    if isinstance(error, InvalidRequest):
        return error.param
    return "model" if isinstance(error, UnknownModel) else None
