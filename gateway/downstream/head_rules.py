"""The rules for the head of a request that the parser does not enforce.

Owns: the rejection of a head that is too large or that another server could read differently, and which
lines frame the body. Must never enter: a socket, replies.
"""

from __future__ import annotations

from gateway.formats.contract import Headers
from gateway.limits import HeadLimits

#: Digits of the largest Content-Length that the parser accepts.
LENGTH_DIGITS = 20


class InvalidRequest(ValueError):
    """Bytes that are not an acceptable request: ``status`` and ``message`` of the reply to them.

    ``limit`` is the label under which metrics count an exceeded limit; None where no limit was exceeded.
    """

    def __init__(self, status: int, message: str, limit: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.limit = limit


def too_many_lines() -> InvalidRequest:
    """Return the error for a head with too many header lines."""
    return InvalidRequest(431, "The head of the request has too many lines", "request_head_lines")


def too_many_bytes() -> InvalidRequest:
    """Return the error for a head with too many bytes."""
    return InvalidRequest(431, "The head of the request is too large", "request_head_size")


def too_many_digits() -> InvalidRequest:
    """Return the error for a Content-Length with many zeros before it, which no client sends."""
    return _ambiguous(f"its Content-Length has more than {LENGTH_DIGITS} digits")


def check_size(target: bytes, headers: Headers, limits: HeadLimits) -> None:
    """Raise InvalidRequest for a head over ``limits``; bytes behind it in the same read are not counted."""
    if len(headers) > limits.lines:
        raise too_many_lines()
    if len(target) + sum(len(name) + len(value) + 4 for name, value in headers) > limits.size:
        raise too_many_bytes()


def check_transfer_encoding(value: bytes, http11: bool) -> None:
    """Raise InvalidRequest unless the body is chunked and not coded otherwise (RFC 9112, section 6.1).

    The parser ignores codings it does not know; a proxy in front may find another end of the body.
    """
    if not http11 or value.lower() != b"chunked":
        raise _ambiguous("its Transfer-Encoding is not chunked alone, in HTTP/1.1")


def check_version(version: str, hosts: int) -> None:
    """Raise InvalidRequest for a version other than 1.0 and 1.1, or a wrong number of Host lines.

    Source: RFC 9112, section 3.2.
    """
    if version not in ("1.0", "1.1"):
        raise _ambiguous("its version is neither HTTP/1.0 nor HTTP/1.1")
    if hosts > 1 or (not hosts and version == "1.1"):
        raise _ambiguous("it has no Host, or more than one")


def _ambiguous(reason: str) -> InvalidRequest:
    return InvalidRequest(400, f"Invalid HTTP request: {reason}")


def framing(headers: Headers) -> Headers:
    """Return the lines that define where the body ends; none if there is no body."""
    return [line for line in headers if line[0] in (b"content-length", b"transfer-encoding")]


def origin_form(target: bytes) -> bytes:
    """Return path and query of an absolute URL; anything else unchanged (RFC 9112, section 3.2)."""
    _, scheme, rest = target.partition(b"://")
    slash = rest.find(b"/")
    return target if not scheme else rest[slash:] if slash >= 0 else b"/"
