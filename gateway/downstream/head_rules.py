"""What the head of a request may be, beyond what the parser takes.

Owns: the refusal of one that somebody else might read in another way, or that has too much of something, and
what a head says of the body behind it. Must never enter: a socket, replies.
"""

from __future__ import annotations

from gateway.formats.contract import Headers
from gateway.limits import HeadLimits

#: What a head can have too much of, and what is then said to the client.
EXCESSES = {
    "lines": "The head of the request has too many lines",
    "size": "The head of the request is too large",
}


class Refused(ValueError):
    """A head that the parser takes, and that others may read in another way; the text says what is wrong."""


class Excess(ValueError):
    """A head that has too much of something; the text is a key of EXCESSES."""


def check_excess(target: bytes, headers: Headers, limits: HeadLimits) -> None:
    """Raises Excess. What came behind the head in the same read is no part of it."""
    if len(headers) > limits.lines:
        raise Excess("lines")
    if len(target) + sum(len(name) + len(value) + 4 for name, value in headers) > limits.size:
        raise Excess("size")


def check_coding(value: bytes, http11: bool) -> None:
    """Raises Refused. The parser reads on behind a coding that it does not know; what is in front of us may
    read less."""
    if not http11 or value.lower() != b"chunked":
        raise Refused("its Transfer-Encoding is not chunked alone, in HTTP/1.1")


def check_version(version: str, hosts: int) -> None:
    """Raises Refused. ``hosts`` is how many lines say whom the request is for."""
    if version not in ("1.0", "1.1"):
        raise Refused("its version is neither HTTP/1.0 nor HTTP/1.1")
    if hosts > 1 or (not hosts and version == "1.1"):
        raise Refused("it has no Host, or more than one")


def framing(headers: Headers) -> Headers:
    """The lines that say where the body ends; none: there is no body."""
    return [line for line in headers if line[0] in (b"content-length", b"transfer-encoding")]


def origin_form(target: bytes) -> bytes:
    """An absolute URL as the path and query it names; anything else as it is."""
    _, scheme, rest = target.partition(b"://")
    slash = rest.find(b"/")
    return target if not scheme else rest[slash:] if slash >= 0 else b"/"
