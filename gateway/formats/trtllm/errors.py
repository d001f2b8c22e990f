"""Errors in TensorRT-LLM's shape: the error reply, and the error event inside a stream.

Owns: the envelopes and their ``type`` names. Must never enter: deciding what is an error.
"""

from __future__ import annotations

import json
from typing import Any

from gateway.errors import GatewayError
from gateway.formats.contract import ErrorReply
from gateway.formats.failures import error_event, error_reply, machine_members, param_of, too_long

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    408: "RequestTimeoutError",
    413: "RequestEntityTooLargeError",
    429: "TooManyRequestsError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}
#: The type of every error event that the engine sends.
IN_BAND = "server_error"


def render(error: GatewayError) -> ErrorReply:
    """Return the error reply."""
    kind = _TYPES.get(error.status, _TYPES[400] if error.status < 500 else "InternalServerError")
    return error_reply(
        error, envelope(_message(error), kind, param_of(error), error.status, **machine_members(error))
    )


def in_band(error: GatewayError) -> bytes:
    """Return the error event and the end of a stream, as JSON with spaces like the engine's."""
    members = {"message": error.message, "type": IN_BAND, "code": error.status, "param": param_of(error)}
    return error_event(json.dumps({"error": members}).encode())


def _message(error: GatewayError) -> str:
    """Return the message; of a prompt that is too long in the terms of the engine's own setting."""
    numbers = too_long(error)
    if numbers is None:
        return error.message
    wanted = "" if numbers.of_prompt else f" and max_tokens ({numbers.reply})"
    return (
        f"The prompt length ({numbers.prompt}){wanted} must be "
        f"{'below' if numbers.of_prompt else 'at most'} max_seq_len ({numbers.limit})"
    )


def envelope(message: str, type_: str, param: str | None, code: int, **more: str | int) -> bytes:
    """Return the body of an error reply, as compact JSON like the engine's, with ``more`` members."""
    members: dict[str, Any] = {"object": "error", "message": message, "type": type_}
    return json.dumps({**members, "param": param, "code": code, **more}, separators=(",", ":")).encode()


def status_in_band(error: Any) -> int:
    """Return the status of an error object inside a 200: its code, 500 if it names none.

    The engine's own events name none. Without a stream it answers the same failures with a 400, whose
    ``type`` is that of a bad request; an event says what it was.
    """
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code <= 599 else 500
