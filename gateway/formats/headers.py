"""Which header lines may cross the gateway, in both directions.

Owns: hop-by-hop rules. Must never enter: a dialect, I/O, third-party packages.
Source: RFC 9110 section 7.6.1.
"""

from __future__ import annotations

from gateway.formats.base import Headers

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


def to_worker(headers: Headers, authorization: bytes | None = None) -> list[tuple[bytes, bytes]]:
    """The client's lines that a worker gets; ``authorization`` replaces the client's own when given."""
    dropped = _NOT_UPSTREAM | _named_by_connection(headers)
    if authorization is None:
        return [line for line in headers if line[0] not in dropped]
    kept = [line for line in headers if line[0] not in dropped and line[0] != b"authorization"]
    kept.append((b"authorization", authorization))
    return kept


def to_client(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The worker's lines that a client gets."""
    dropped = _NOT_DOWNSTREAM | _named_by_connection(headers)
    return [line for line in headers if line[0] not in dropped]


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    named: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            named |= {word.strip().lower() for word in value.split(b",")}
    return named
