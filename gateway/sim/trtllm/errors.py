"""TensorRT-LLM's errors: one envelope, another for bodies that fail validation, a third inside streams.

Owns: these shapes. Must never enter: when an error is sent.
"""

from __future__ import annotations

import json
from typing import Any

from gateway.sim.engine import Refusal, encode


def refusal(message: str, kind: str = "BadRequestError", code: int = 400) -> Refusal:
    """Return the answer to a request that fails, for whatever reason: nearly always a 400."""
    error = {"object": "error", "message": message, "type": kind, "param": None, "code": code}
    return Refusal(code, encode(error), extra=b"")


def invalid(kind: str, path: tuple[str, ...], message: str, value: Any) -> Refusal:
    """Return the answer to a body that fails validation: the validator's own text."""
    problem = {"type": kind, "loc": ("body", *path), "msg": message, "input": value}
    return Refusal(400, json.dumps({"error": str([problem])}).encode(), extra=b"")


def event(message: str) -> bytes:
    """Return the event of a failure inside a stream, and the end of the stream that follows it."""
    error = {"message": message, "type": "server_error", "code": None, "param": None}
    return b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"error": error}).encode()
