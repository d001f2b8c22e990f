"""What the formats' spellings of a failure have in common.

Owns: the head of an error reply, the field at fault, the end of a stream that failed. Must never enter: the
body of an error, which is the dialect's.
"""

from __future__ import annotations

from gateway.errors import GatewayError, InvalidRequest, UnknownModel
from gateway.formats.contract import ErrorReply


def error_reply(error: GatewayError, document: bytes) -> ErrorReply:
    """The reply that says ``document``, in JSON, of ``error``, and when to come back where that helps."""
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    return ErrorReply(error.status, headers, document)


def error_event(document: bytes) -> bytes:
    """The event that says ``document``, in JSON of one line, and the end of its stream."""
    return b"data: %b\n\ndata: [DONE]\n\n" % document


def param_of(error: GatewayError) -> str | None:
    """The field of the request that is at fault, if one is."""
    if isinstance(error, InvalidRequest):
        return error.param
    return "model" if isinstance(error, UnknownModel) else None
