"""Errors in SGLang's shape: the error reply before commit, the last two events after it.

Owns: these shapes, and the unary reply in place of an error event (SGLang 0.5.22). Must never enter: deciding
what is an error.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gateway.errors import GatewayError, UpstreamMalformed
from gateway.formats.contract import ErrorReply
from gateway.formats.failures import error_event, error_reply, machine_members, too_long


def render(error: GatewayError) -> ErrorReply:
    """Return ``{"error": {"message": ...}}``, as the engine answers a request that it cannot serve."""
    return error_reply(error, _compact({"error": {"message": _message(error), **machine_members(error)}}))


def in_band(error: GatewayError) -> bytes:
    """Return the error event and the ``[DONE]`` that end a stream after its 200 was sent."""
    detail = {
        "message": error.message,
        "type": error.code,
        "code": error.status,
        "retryable": error.retry_after is not None,
    }
    return error_event(_compact({"error": detail}))


def without_stream(event: bytes, status: int) -> bytes:
    """Return the unary error reply with ``status`` that the engine would send in place of ``event`` in a
    stream.

    ``event`` is the object of an error event, or of one with a finish reason that has a status. Raises
    UpstreamMalformed if it contains a number too long to be written.
    """
    try:
        return _without_stream(msgspec.json.decode(event), status)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UpstreamMalformed("The worker sent an error that cannot be read.", cause=error) from error


def _without_stream(document: dict[str, Any], status: int) -> bytes:
    error = document.get("error")
    if error is not None:
        # The Python frontend sends more members in a stream than in a unary reply; the Rust frontend sends
        # the same.
        longer = isinstance(error, dict) and "retryable" in error and "message" in error
        return msgspec.json.encode({"error": {"message": error["message"]} if longer else error})
    message = document["meta_info"]["finish_reason"].get("message")
    if not isinstance(message, str):
        message = ""
    if status == 400:
        return msgspec.json.encode({"error": {"message": message}})
    flat = {"object": "error", "message": message, "type": str(status), "param": None, "code": status}
    return msgspec.json.encode(flat)


def _message(error: GatewayError) -> str:
    numbers = too_long(error)
    if numbers is None:
        return error.message
    limit, prompt, reply = numbers
    if numbers.of_prompt:
        return f"The input ({prompt} tokens) is longer than the model's context length ({limit} tokens)."
    return (
        f"Requested token count exceeds the model's maximum context length of {limit} tokens. You requested "
        f"a total of {prompt + reply} tokens: {prompt} tokens from the input messages and {reply} tokens for "
        "the completion. Please reduce the number of tokens in the input messages or the completion to fit "
        "within the limit."
    )


def _compact(document: object) -> bytes:
    # json and not msgspec: it escapes everything a message may contain, lone surrogates included.
    return json.dumps(document, separators=(",", ":")).encode()
