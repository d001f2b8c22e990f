"""Parts of error replies that all formats share.

Owns: the head of an error reply, the name of the parameter at fault, the numbers of a request that is too
long, the end of a failed stream. Must never enter: the words of an error, which are the dialect's.
"""

from __future__ import annotations

from gateway.errors import ContextLength, GatewayError, InvalidRequest, TooLong, UnknownModel
from gateway.formats.contract import ErrorReply


def error_reply(error: GatewayError, document: bytes) -> ErrorReply:
    """Return an error reply with the JSON ``document``, and ``Retry-After`` if ``error`` has one."""
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    return ErrorReply(error.status, headers, document)


def error_event(document: bytes) -> bytes:
    """Return an event with the JSON ``document``, which is one line, and the end of the stream."""
    return b"data: %b\n\ndata: [DONE]\n\n" % document


def too_long(error: GatewayError) -> TooLong | None:
    """Return the numbers of a request that is too long, None for any other error."""
    return error.numbers if isinstance(error, ContextLength) else None


def machine_members(error: GatewayError) -> dict[str, str | int]:
    """Return the members by which a program recognises a request that is too long; {} for any other error."""
    numbers = too_long(error)
    if numbers is None:
        return {}
    return {"kind": error.code, "limit": numbers.limit, "actual": numbers.actual}


def param_of(error: GatewayError) -> str | None:
    """Return the name of the request's parameter at fault, if there is one."""
    if isinstance(error, InvalidRequest):
        return error.param
    return "model" if isinstance(error, UnknownModel) else None
