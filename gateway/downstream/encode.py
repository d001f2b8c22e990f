"""Replies as bytes.

Owns: status line, header lines and chunk framing of replies to clients. Must never enter: sockets, a dialect,
ASGI. Source of the rules: RFC 9112.
"""

from __future__ import annotations

import http
import json

from gateway.downstream.client import NO_BODY
from gateway.formats.contract import Headers


def phrase_of(status: int) -> str:
    """Return the reason phrase; "" for a status without one (529)."""
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return ""


def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {phrase_of(status)}\r\n".encode()


_STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
CLOSE = b"connection: close\r\n"
KEEP_ALIVE = b"connection: keep-alive\r\n"
#: One chunk: its size and its bytes, at least one. And the parts before and after the bytes.
CHUNK = b"%x\r\n%b\r\n"
CHUNK_SIZE, CHUNK_END = b"%x\r\n", b"\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def head(status: int, headers: Headers, more: bytes) -> bytes:
    """Return status line and headers with the empty line; ``more`` are encoded lines that come last.

    Names and values are not checked: they come from a parser that rejects invalid ones, or from the gateway.
    """
    return b"%b%b%b\r\n" % (_STATUS_LINES[status], lines(headers), more)


def lines(headers: Headers) -> bytes:
    """Return the header lines without the empty one."""
    return b"".join([b"%b: %b\r\n" % line for line in headers])


def complete_reply(status: int, headers: Headers, more: bytes, body: bytes) -> bytes:
    """Return ``head`` with the length of ``body``, and ``body``."""
    if status in NO_BODY:
        return head(status, headers, more) + body
    return b"%b%bcontent-length: %d\r\n%b\r\n%b" % (
        _STATUS_LINES[status],
        b"".join([b"%b: %b\r\n" % line for line in headers]),
        len(body),
        more,
        body,
    )


def failure(status: int, message: str) -> tuple[Headers, bytes]:
    """Return headers and body of an error in the shape of the control plane: no format is known yet."""
    body = json.dumps({"message": message, "type": phrase_of(status), "code": status}).encode()
    return [(b"content-type", b"application/json")], body
