"""Replies as bytes.

Owns: status line, header lines and chunk framing of what goes downstream. Must never enter: sockets, a
dialect, ASGI. Source of the rules: RFC 9112.
"""

from __future__ import annotations

import http

from gateway.formats.base import Headers


def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


_STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
CLOSE = b"connection: close\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def head(status: int, headers: Headers, more: bytes) -> bytes:
    """Status line and headers, blank line included; ``more`` are whole lines that come last.

    Names and values are trusted: they come from a parser that refuses bad ones, or from this program.
    """
    return b"%b%b%b\r\n" % (_STATUS_LINES[status], lines(headers), more)


def chunk(data: bytes) -> bytes:
    """``data``, which is not empty, as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def lines(headers: Headers) -> bytes:
    """Header lines without the blank one."""
    return b"".join([b"%b: %b\r\n" % line for line in headers])


def has_length(status: int, headers: Headers) -> bool:
    """Whether a reply with this head says where it ends: by a length, or by having no body at all."""
    return status in (204, 304) or any(name == b"content-length" for name, _ in headers)
