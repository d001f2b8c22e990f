"""Which header lines may cross the gateway, in both directions, and what those of a body say of it.

Owns: hop-by-hop rules, media types, content encodings. Must never enter: a dialect, I/O,
third-party packages.
Source: RFC 9110 sections 7.6.1, 8.3 and 8.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

#: Header lines as they stood on the wire, in order, names in lower case.
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
# Expect is answered by our own listener; an encoded reply could not be read, so none is asked for.
_NOT_UPSTREAM = _HOP_BY_HOP | {b"host", b"content-length", b"expect", b"accept-encoding"}
# Date and Server are our own listener's; the length is counted anew.
_NOT_DOWNSTREAM = _HOP_BY_HOP | {b"date", b"server", b"content-length"}
_OWN_ID = _NOT_DOWNSTREAM | {b"x-request-id"}
# What names no other line.
_USUAL = ([b"keep-alive"], [b"close"])
_NONE: frozenset[bytes] = frozenset()


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first value of ``name`` (given in lower case), or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


def to_worker(headers: Headers, authorization: bytes | None = None) -> list[tuple[bytes, bytes]]:
    """The client's lines that a worker gets; ``authorization`` replaces the client's own when given."""
    named = _named_by_connection(headers)
    dropped = _NOT_UPSTREAM | named if named else _NOT_UPSTREAM
    if authorization is None:
        return [line for line in headers if line[0] not in dropped]
    kept = [line for line in headers if line[0] not in dropped and line[0] != b"authorization"]
    kept.append((b"authorization", authorization))
    return kept


def of_own_call(headers: Headers, authorization: bytes | None) -> list[tuple[bytes, bytes]]:
    """The lines of a call with JSON that the gateway makes because of a client: with ``authorization``, or
    else the client's own."""
    lines = [(b"content-type", b"application/json")]
    value = authorization or header(headers, b"authorization")
    if value is not None:
        lines.append((b"authorization", value))
    return lines


def to_client(headers: Headers, *, own_id: bool = False) -> list[tuple[bytes, bytes]]:
    """The worker's lines that a client gets; ``own_id``: without the worker's word for the request's id."""
    named = _named_by_connection(headers)
    dropped = _OWN_ID if own_id else _NOT_DOWNSTREAM
    if named:
        dropped |= named
    return [line for line in headers if line[0] not in dropped]


def media_type(headers: Headers) -> bytes:
    """The media type in lower case, without its parameters; b"" where none is named."""
    value = header(headers, b"content-type")
    return b"" if value is None else _media_type(value)


def encoded(headers: Headers) -> bool:
    """Whether the body is in an encoding, and so is not what its media type says."""
    value = header(headers, b"content-encoding")
    return value is not None and value.strip().lower() not in (b"", b"identity")


@lru_cache(256)
def _media_type(value: bytes) -> bytes:
    return value.partition(b";")[0].strip().lower()


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    said = [value for name, value in headers if name == b"connection"]
    if not said:
        return _NONE
    said = [value.lower() for value in said]
    if said in _USUAL:
        return _NONE
    return frozenset(word.strip() for value in said for word in value.split(b","))
