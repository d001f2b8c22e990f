"""vLLM's errors: one envelope, several spellings of its type.

Owns: the envelope (recorded from vLLM 0.33.0). Must never enter: when an error is sent.
"""

from __future__ import annotations

import json
from typing import Any

from gateway.sim.engine import Refusal, encode

_DISABLED = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
_BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
_PAUSED = "Generation is paused. Please retry after it resumes."


class StreamError(Exception):
    """An error that is found only after a stream has begun, so it is an event there; a unary call gets its
    status.
    """

    def __init__(
        self, message: str, *, kind: str = "BadRequestError", param: str | None = None, code: int = 400
    ):
        super().__init__(message)
        self.error = {"message": message, "type": kind, "param": param, "code": code}
        self.status = code

    def refusal(self) -> Refusal:
        return Refusal(self.status, encode({"error": self.error}))

    def event(self) -> bytes:
        """Return the error event, which the engine writes with spaces, unlike its other JSON."""
        return b"data: %b\n\n" % json.dumps({"error": self.error}).encode()


def refusal(message: str, kind: str, code: int, param: str | None = None) -> Refusal:
    envelope = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    try:
        return Refusal(code, json.dumps(envelope, ensure_ascii=False, separators=(",", ":")).encode())
    except UnicodeEncodeError as error:
        # The message repeats an unpaired surrogate of the request: the engine cannot write it either.
        return refusal(str(error), "BadRequestError", 400)


def internal(message: str) -> Refusal:
    """Return the answer to an unexpected exception."""
    error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
    return Refusal(500, encode({"error": error}), extra=b"")


def malformed(problems: list[str], param: str | None) -> Refusal:
    """Return the refusal of a body that fails validation; ``problems`` are the validator's own lines."""
    plural = "error" if len(problems) == 1 else "errors"
    message = f"{len(problems)} validation {plural}:\n" + "\n".join(f"  {line}" for line in problems)
    return refusal(message, "Bad Request", 400, param)


def invalid(message: str, *, param: str | None = None, value: Any = None) -> Refusal:
    """Return the refusal of a value that breaks a rule; with ``param`` the message names it and its value."""
    if param is not None:
        shown = f", value={value}" if value is not None else ""
        message = f"{message} (parameter={param}{shown})"
    return refusal(message, "BadRequestError", 400, param)


def unknown_model(name: str, served: list[str]) -> Refusal:
    message = f"The model `{name}` does not exist. Valid aliases: {', '.join(served)}."
    return refusal(message, "NotFoundError", 404, "model")


def scale_out_off() -> Refusal:
    return refusal(_DISABLED, "PermissionDeniedError", 403)


def busy() -> Refusal:
    return refusal(_BUSY, "Service Unavailable", 503)


def failed() -> StreamError:
    """Return the error of one request that failed inside the engine."""
    return StreamError("Internal server error", kind="InternalServerError", code=500)


def paused() -> StreamError:
    return StreamError(_PAUSED, kind="ServiceUnavailableError", code=503)
