"""Strategies for hostile bytes: correct messages with odd lengths, line ends, nesting and numbers."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

Pieces = tuple[bytes, ...]

#: Inputs of up to so many bytes are also read one byte at a time.
SINGLE_BYTES = 4096

_NUMBERS = (
    *b"0 1 -1 +5 0x5 007 1_0 5,5 1e309 -0.0 1e-9999 NaN Infinity 4294967296 9223372036854775807".split(),
    *b"18446744073709551615 18446744073709551616 ffffffffffffffff fffffffffffffffff".split(),
    *(b"", b"5 ", b" 5", b"9" * 400, b"1" + b"0" * 5000),
)
_TOKENS = (
    *(b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\n", b"\r\r", b"\n\r", b"\0", b"\t", b" ", b"\x0b", b"\x7f"),
    *(b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xef\xbb\xbf", b"[" * 600, b'{"a":' * 600),
    *rb"""\ud800 \ " ' { } [ ] , : null true {} [] data: data [DONE]""".split(),
    *b'"routing_data":{"a":1}, "routing_data":7, "index":-1, "error":{"message":"m","code":599},'.split(),
    *b"HTTP/1.1 HTTP/1.0 HTTP/2.0 RTSP/1.0 204 304 199 600 http://a".split(),
    *(b"CONNECT ", b"HEAD ", b"data: ", b"data: [DONE]\n\n", b"event: x\n", b"id: 1\n", b": c\n\n"),
    *(b"content-length: 3\r\n", b"content-length: 4\r\n", b"Content-Length:\r\n 3\r\n", b"x: \xff\r\n"),
    *(b"transfer-encoding: chunked\r\n", b"Transfer-Encoding: chunked, identity\r\n"),
    *(b"transfer-encoding:\tchunked\t\r\n", b"transfer-encoding: ,chunked\r\n"),
    *(b"transfer-encoding : chunked\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n"),
    *(b"connection: close\r\n", b"connection: keep-alive\r\n", b"host: b\r\n", b"expect: 100-continue\r\n"),
    *(b"0\r\n\r\n", b"3\r\nabc\r\n", b"3;a=b\r\nabc\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    *(b"HTTP/1.1 100 C\r\n\r\n", b"HTTP/1.1 101 S\r\n\r\n"),
)
_NUMBER = re.compile(rb"[0-9]+")
_MEMBER = re.compile(rb'"\w+" ?: ?')
_LINE = re.compile(rb"[^\n]*\n")
#: Ends of a line that continue it in the next one, and halves of a line end.
_ENDS = (b"\r\n ", b"\r\n\t", b"\n", b"\r", b"\r\r\n")

#: Changes at a position: the bytes before it, those after it, other bytes, and a count.
_ANYWHERE: dict[str, Callable[[bytes, bytes, bytes, int], bytes]] = {
    "insert": lambda head, tail, what, count: head + what + tail,
    "overwrite": lambda head, tail, what, count: head + what + tail[count:],
    "cut out": lambda head, tail, what, count: head + tail[count:],
    "break off": lambda head, tail, what, count: head,
    "repeat": lambda head, tail, what, count: head + tail[:40] * (count + 1) + tail[40:],
    "flip": lambda head, tail, what, count: head + _flipped(tail[:1], count) + tail[1:],
    "swap case": lambda head, tail, what, count: head + tail[:20].swapcase() + tail[20:],
}
#: Changes of a match: the pattern, and the new text from the match, other bytes and a count.
_AT_A_MATCH: dict[str, tuple[re.Pattern[bytes], Callable[[bytes, bytes, int], bytes]]] = {
    "renumber": (_NUMBER, lambda found, what, count: _NUMBERS[count % len(_NUMBERS)]),
    "repeat member": (_MEMBER, lambda found, what, count: found + (what or b"0") + b"," + found),
    "fold": (_LINE, lambda found, what, count: found.rstrip(b"\r\n") + _ENDS[count % len(_ENDS)]),
    "repeat line": (_LINE, lambda found, what, count: found * (count + 2)),
}
_CHANGES = (*_ANYWHERE, *_AT_A_MATCH, "insert", "renumber", "fold")


def _flipped(byte: bytes, count: int) -> bytes:
    return bytes(each ^ (1 << count % 8) for each in byte)


def _changed(data: bytes, change: str, where: float, what: bytes, count: int) -> bytes:
    """Return ``data`` after a change at ``where``, a position from 0 to 1."""
    if change in _ANYWHERE:
        at = int(where * len(data))
        return _ANYWHERE[change](data[:at], data[at:], what, count)
    pattern, replace = _AT_A_MATCH[change]
    found = list(pattern.finditer(data))
    if not found:
        return data
    match = found[min(int(where * len(found)), len(found) - 1)]
    return data[: match.start()] + replace(match.group(), what, count) + data[match.end() :]


@st.composite
def mutated(draw: DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Return one of ``seeds`` after up to four changes, some of them with a part of another one."""
    data = draw(st.sampled_from(seeds))
    words = st.sampled_from(_TOKENS) | st.binary(max_size=4) | st.sampled_from(seeds)
    for change in draw(st.lists(st.sampled_from(_CHANGES), max_size=4)):
        where = draw(st.floats(0, 1, allow_subnormal=False))
        data = _changed(data, change, where, draw(words), draw(st.integers(0, 40)))
    return data[:32768]


def random_cuts(size: int) -> SearchStrategy[list[int]]:
    return st.lists(st.integers(1, max(1, size - 1)), max_size=8)


def cut(data: bytes, places: Sequence[int]) -> Pieces:
    """Return ``data`` cut at ``places``, without empty pieces."""
    inside = sorted({place for place in places if 0 < place < len(data)})
    return tuple(data[start:end] for start, end in pairwise((0, *inside, len(data))) if start < end)


def usual_cuts(data: bytes) -> list[Pieces]:
    """Return deterministic ways to cut ``data``: byte by byte, and at places that depend on its content."""
    middle = zlib.crc32(data) % max(1, len(data))
    ends = [match.end() + shift for match in _LINE.finditer(data) for shift in (0, -1)]
    ways = [cut(data, [middle]), cut(data, ends[:200]), cut(data, range(7, len(data), 61))]
    return [*ways, cut(data, range(1, len(data)))] if len(data) <= SINGLE_BYTES else ways
