"""What is looked at of a request.

Owns: the model, whether a stream is asked for, the id. Must never enter: refusing a body, which is the
engine's to judge; touching a byte of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.formats.base import Headers, Projection, header
from gateway.formats.headers import media_type

#: Names the model where the body does not.
MODEL_HEADER = b"x-model"

_HEADER_SAFE = re.compile(r"[!-~](?:[ -~]{0,1022}[!-~])?")


class _Peek(msgspec.Struct):
    model: Any = None
    stream: Any = None


_peek = msgspec.json.Decoder(_Peek).decode


@dataclass(frozen=True, slots=True)
class Request:
    """``id`` is the client's, from ``X-Request-Id``; None where it named none that can be used."""

    body: bytes
    headers: Headers
    model: str | None
    stream: bool
    id: str | None


def parse(body: bytes, headers: Headers) -> Request:
    """Total: a body that cannot be read names nothing."""
    peek = _Peek()
    if media_type(headers) in (b"", b"application/json") or body[:1] == b"{":
        try:
            peek = _peek(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    model = peek.model if isinstance(peek.model, str) and peek.model else _text(headers, MODEL_HEADER)
    named = _text(headers, b"x-request-id")
    safe = named is not None and _HEADER_SAFE.fullmatch(named) is not None
    return Request(body, headers, model, peek.stream is True, named if safe else None)


def project(request: Request) -> Projection:
    """All that is known of it."""
    return Projection(
        stream=request.stream, ids=() if request.id is None else (request.id,), model=request.model
    )


def _text(headers: Headers, name: bytes) -> str | None:
    value = header(headers, name)
    try:
        return None if value is None else value.decode().strip() or None
    except UnicodeDecodeError:
        return None
