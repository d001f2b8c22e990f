"""SGLang's spelling of failures: the whole reply before commit, the last two events after it.

Owns: these shapes, and what the engine says without a stream where it said it in one. Must never enter:
deciding what is a failure.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gateway.errors import GatewayError, UpstreamMalformed
from gateway.formats.contract import ErrorReply
from gateway.formats.failures import error_event, error_reply


def render(error: GatewayError) -> ErrorReply:
    """``{"error": {"message": ...}}``, as the engine answers a request it cannot serve."""
    return error_reply(error, _compact({"error": {"message": error.message}}))


def in_band(error: GatewayError) -> bytes:
    """The error event and the ``[DONE]`` that end a stream whose 200 has left."""
    detail = {
        "message": error.message,
        "type": error.code,
        "code": error.status,
        "retryable": error.retry_after is not None,
    }
    return error_event(_compact({"error": detail}))


def without_stream(event: bytes, status: int) -> bytes:
    """The engine's whole reply with ``status`` where, in a stream, ``event`` told of the failure.

    ``event`` is the object of an error event, or of one with a finish reason that has a status. Raises
    UpstreamMalformed where it holds a number too long to be written again.
    """
    try:
        return _without_stream(msgspec.json.decode(event), status)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UpstreamMalformed("The worker sent an error that cannot be read.", cause=error) from error


def _without_stream(document: dict[str, Any], status: int) -> bytes:
    error = document.get("error")
    if error is not None:
        # The Python frontend says more in a stream than without; the Rust one says the same.
        said_more = isinstance(error, dict) and "retryable" in error and "message" in error
        return msgspec.json.encode({"error": {"message": error["message"]} if said_more else error})
    message = _finish_message(document)
    if status == 400:
        return msgspec.json.encode({"error": {"message": message}})
    said = {"object": "error", "message": message, "type": str(status), "param": None, "code": status}
    return msgspec.json.encode(said)


def _finish_message(document: dict[str, Any]) -> str:
    message = document["meta_info"]["finish_reason"].get("message")
    return message if isinstance(message, str) else ""


def _compact(document: object) -> bytes:
    # json and not msgspec: it escapes whatever a message may hold, lone surrogates too.
    return json.dumps(document, separators=(",", ":")).encode()
