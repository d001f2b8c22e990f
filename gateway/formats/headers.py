"""Header lines: which of them the gateway forwards, media types, content encodings.

Owns: hop-by-hop rules for both directions. Must never enter: a dialect, I/O, third-party packages.
Source: RFC 9110 sections 7.6.1, 8.3 and 8.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

#: Header lines in the order of the message, names in lower case.
Headers = Sequence[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# The listener answers Expect. Accept-Encoding is dropped because an encoded reply could not be inspected, and
# Origin because engines allow every origin, where the gateway has keys and a list of origins.
_NOT_UPSTREAM = _HOP_BY_HOP | {b"host", b"content-length", b"expect", b"accept-encoding", b"origin"}
# The listener adds Date, Server, Content-Length, and those of CORS.
_NOT_DOWNSTREAM = _HOP_BY_HOP | {
    b"date",
    b"server",
    b"content-length",
    b"access-control-allow-origin",
    b"access-control-allow-credentials",
    b"access-control-expose-headers",
}
_OWN_ID = _NOT_DOWNSTREAM | {b"x-request-id"}
# Values of Connection that name no other header.
_USUAL = ([b"keep-alive"], [b"close"])
_NONE: frozenset[bytes] = frozenset()


def header(headers: Headers, name: bytes) -> bytes | None:
    """Return the first value of ``name`` (in lower case), or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


def to_worker(headers: Headers, authorization: bytes | None = None) -> list[tuple[bytes, bytes]]:
    """Return the lines of the client's request that a worker gets.

    ``authorization`` replaces the client's own if it is not None.
    """
    named = _named_by_connection(headers)
    dropped = _NOT_UPSTREAM | named if named else _NOT_UPSTREAM
    if authorization is None:
        return [line for line in headers if line[0] not in dropped]
    kept = [line for line in headers if line[0] not in dropped and line[0] != b"authorization"]
    kept.append((b"authorization", authorization))
    return kept


def of_own_call(headers: Headers, authorization: bytes | None) -> list[tuple[bytes, bytes]]:
    """Return the lines of a JSON request that the gateway makes on behalf of a client.

    Its Authorization is ``authorization``, or else the client's own.
    """
    lines = [(b"content-type", b"application/json")]
    value = authorization or header(headers, b"authorization")
    if value is not None:
        lines.append((b"authorization", value))
    return lines


def to_client(headers: Headers, *, own_id: bool = False) -> list[tuple[bytes, bytes]]:
    """Return the lines of the worker's reply that a client gets; with ``own_id``, without X-Request-Id."""
    named = _named_by_connection(headers)
    dropped = _OWN_ID if own_id else _NOT_DOWNSTREAM
    if named:
        dropped |= named
    return [line for line in headers if line[0] not in dropped]


def media_type(headers: Headers) -> bytes:
    """Return the media type in lower case without its parameters; b"" if there is none."""
    value = header(headers, b"content-type")
    return b"" if value is None else _media_type(value)


def encoded(headers: Headers) -> bool:
    """Return True if the body has a content encoding other than identity."""
    value = header(headers, b"content-encoding")
    return value is not None and value.strip().lower() not in (b"", b"identity")


@lru_cache(256)
def _media_type(value: bytes) -> bytes:
    return value.partition(b";")[0].strip().lower()


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    values = [value for name, value in headers if name == b"connection"]
    if not values:
        return _NONE
    values = [value.lower() for value in values]
    if values in _USUAL:
        return _NONE
    return frozenset(word.strip() for value in values for word in value.split(b","))
