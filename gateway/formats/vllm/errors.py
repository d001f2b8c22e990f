"""Errors in vLLM's shape: the error reply, and the error event inside a stream.

Owns: the envelope and its ``type`` names (vLLM 0.33.0). Must never enter: deciding what is an error.
"""

from __future__ import annotations

import json

from gateway.errors import GatewayError
from gateway.formats.contract import ErrorReply
from gateway.formats.failures import error_event, error_reply, machine_members, param_of, too_long

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
        "message": _message(error),
        "type": _type(error),
        "param": param_of(error),
        "code": error.status,
        **machine_members(error),
    }


def _message(error: GatewayError) -> str:
    numbers = too_long(error)
    if numbers is None:
        return error.message
    limit, prompt, reply = numbers
    if prompt > limit:
        wanted, of = "", ""
    else:
        asked = "at least 1" if numbers.of_prompt else reply
        wanted = f"plus the number of requested output tokens ({asked}) "
        of = " (prompt + requested output tokens)"
    return (
        f"The decoder prompt (length {prompt}) {wanted}is longer than the maximum model length of {limit}. "
        f"Make sure that `max_model_len` is no smaller than the number of text tokens{of}."
    )


def _type(error: GatewayError) -> str:
    fallback = _TYPES[400] if error.status < 500 else "InternalServerError"
    return _TYPES.get(error.status, fallback)
