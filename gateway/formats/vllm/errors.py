"""Errors in vLLM's shape: the error reply, and the error event inside a stream.

Owns: the envelope and its ``type`` names (vLLM 0.33.0). Must never enter: deciding what is an error.
"""

from __future__ import annotations

import json

from gateway.errors import GatewayError
from gateway.formats.contract import ErrorReply
from gateway.formats.failures import error_event, error_reply, param_of

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    408: "RequestTimeoutError",
    413: "RequestEntityTooLargeError",
    422: "UnprocessableEntityError",
    429: "TooManyRequestsError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}


def render(error: GatewayError) -> ErrorReply:
    """Return the error reply, as compact JSON like the engine's."""
    return error_reply(error, json.dumps({"error": _envelope(error)}, separators=(",", ":")).encode())


def in_band(error: GatewayError) -> bytes:
    """Return the error event and the end of a stream, as JSON with spaces like the engine's."""
    return error_event(json.dumps({"error": _envelope(error)}).encode())


def _envelope(error: GatewayError) -> dict[str, str | int | None]:
    return {
        "message": error.message,
        "type": _type(error),
        "param": param_of(error),
        "code": error.status,
    }


def _type(error: GatewayError) -> str:
    fallback = _TYPES[400] if error.status < 500 else "InternalServerError"
    return _TYPES.get(error.status, fallback)
