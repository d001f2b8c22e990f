"""Decoding the compressed body of a request.

Owns: which codings there are, and decoding within a limit. Must never enter: a dialect, I/O.

A client names the coding by ``Content-Encoding`` (RFC 9110, section 8.4.1) or, as clients of one engine do,
by ``X-Body-Compressed``. An engine accepts at most one of them, and that only behind a switch that cannot be
seen from outside; each accepts the decoded body.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, Protocol

from gateway.errors import InvalidRequest, RequestTooLarge
from gateway.formats.contract import Headers

HEADERS = (b"content-encoding", b"x-body-compressed")
#: Bytes that are decoded at once, and bytes of input for that.
STEP, WINDOW = 256 * 1024, 64 * 1024
#: The decoder of zstd may hold 2 to this power of bytes, as every decoder of the coding must (RFC 9659).
ZSTD_WINDOW_LOG = 23


class _Decoder(Protocol):
    """A decoder as those of the standard library: of one member, or frame, of a body."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gunzip:
    """zlib's decoder with the members of the others."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return not self._stream.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._stream.decompress(self._stream.unconsumed_tail + data, max_length)


def _zstd() -> Any:
    """Return the module for zstd, of Python 3.14 or of the extra ``zstd``; None if there is neither."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


class _Coding(NamedTuple):
    """How a body is decoded: ``padding`` are bytes without a meaning between members and behind them."""

    decoder: Callable[[], _Decoder]
    padding: bytes = b""


_ZSTD = _zstd()


def _unzstd() -> Any:
    return _ZSTD.ZstdDecompressor(options={_ZSTD.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG})


_GZIP = _Coding(_Gunzip, padding=b"\0")  # gzip's own tools skip zeros, which come from blocks of a fixed size
_CODINGS: Mapping[str, _Coding] = {
    "gzip": _GZIP,
    "x-gzip": _GZIP,
    **({} if _ZSTD is None else {"zstd": _Coding(_unzstd)}),
}
_FAULTS: tuple[type[Exception], ...] = (EOFError, zlib.error, *(() if _ZSTD is None else (_ZSTD.ZstdError,)))


def without_coding(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return ``headers`` for the decoded body."""
    return [line for line in headers if line[0] not in HEADERS]


def decode(body: bytes, coding: str, limit: int) -> Generator[None, None, bytes]:
    """Return the decoded body, in steps.

    Raises InvalidRequest for an unknown coding or a broken body, RequestTooLarge over ``limit`` bytes.
    """
    known = _CODINGS.get(coding)
    if known is None:
        names = "gzip and zstd" if "zstd" in _CODINGS else "gzip, and zstd where the extra zstd is installed"
        raise InvalidRequest(f"the body's content coding {coding[:64]!r} is not supported here: {names} are")
    try:
        return (yield from _decode(body, known, limit))
    except _FAULTS as error:
        raise InvalidRequest(
            f"the request body cannot be decoded: it is no complete {coding}"
            + (" with windows of 8 MiB at most" if coding == "zstd" else "")
        ) from error


def _decode(body: bytes, coding: _Coding, limit: int) -> Generator[None, None, bytes]:
    parts: list[bytes] = []
    size, decoder = 0, coding.decoder()
    for start in range(0, len(body), WINDOW):
        data = body[start : start + WINDOW]
        while True:
            if decoder.eof:
                data = data.lstrip(coding.padding)
                if not data:
                    break
                decoder = coding.decoder()  # a body may have several members
            part = decoder.decompress(data, STEP)
            size += len(part)
            if size > limit:
                raise RequestTooLarge(f"the decoded request body is over the limit of {limit} bytes")
            parts.append(part)
            yield
            data = decoder.unused_data if decoder.eof else b""
            if not data and not decoder.eof and decoder.needs_input and len(part) < STEP:
                break
    if not decoder.eof:
        raise EOFError
    return b"".join(parts)
