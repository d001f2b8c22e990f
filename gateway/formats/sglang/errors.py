"""SGLang's spelling of failures: the whole reply before commit, the last two events after it.

Owns: both shapes. Must never enter: deciding what is a failure.
"""

from __future__ import annotations

import json

from gateway.errors import GatewayError
from gateway.formats.base import ErrorReply

DONE = b"data: [DONE]\n\n"


def render(error: GatewayError) -> ErrorReply:
    """``{"error": {"message": ...}}``, as the engine answers a request it cannot serve."""
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    return ErrorReply(error.status, headers, _compact({"error": {"message": error.message}}))


def in_band(error: GatewayError) -> bytes:
    """The error event and the ``[DONE]`` that end a stream whose 200 has left."""
    detail = {
        "message": error.message,
        "type": error.code,
        "code": error.status,
        "retryable": error.retry_after is not None,
    }
    return b"data: %b\n\n%b" % (_compact({"error": detail}), DONE)


def _compact(document: object) -> bytes:
    # json and not msgspec: it escapes whatever a message may hold, lone surrogates too.
    return json.dumps(document, separators=(",", ":")).encode()
