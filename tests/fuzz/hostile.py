"""Strategies for hostile bytes: correct messages with odd lengths, line ends, nesting and numbers.

Owns: the changes, and how bytes are cut into reads. Must never enter: what is fuzzed.
"""

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
    *(
        b"0",
        b"1",
        b"-1",
        b"+5",
        b"0x5",
        b"5 ",
        b" 5",
        b"007",
        b"1_0",
        b"5,5",
        b"",
        b"1e309",
        b"-0.0",
        b"1e-9999",
    ),
    *(b"4294967296", b"9223372036854775807", b"18446744073709551615", b"18446744073709551616"),
    *(b"f" * 16, b"f" * 17, b"9" * 400, b"1" + b"0" * 5000, b"NaN", b"Infinity"),
)
_TOKENS = (
    *(b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\n", b"\r\r", b"\n\r", b"\0", b"\t", b" ", b"\x0b", b"\x7f"),
    *(b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xef\xbb\xbf", b"\\ud800", b"\\", b'"', b"'"),
    *(b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"[" * 600, b'{"a":' * 600, b"{}", b"[]"),
    *(b"data:", b"data: ", b"data", b"data: [DONE]\n\n", b"[DONE]", b"event: x\n", b"id: 1\n", b": c\n\n"),
    *(
        b'"error":{"message":"m","code":599},',
        b'"routing_data":{"a":1},',
        b'"routing_data":7,',
        b'"index":-1,',
    ),
    *(b"content-length: 3\r\n", b"content-length: 4\r\n", b"Content-Length:\r\n 3\r\n", b"x: \xff\r\n"),
    *(b"transfer-encoding: chunked\r\n", b"Transfer-Encoding: chunked, identity\r\n"),
    *(
        b"transfer-encoding:\tchunked\t\r\n",
        b"transfer-encoding: ,chunked\r\n",
        b"transfer-encoding : chunked\r\n",
    ),
    *(b"connection: close\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n", b"connection: keep-alive\r\n"),
    *(b"host: b\r\n", b"expect: 100-continue\r\n", b"0\r\n\r\n", b"3\r\nabc\r\n", b"3;a=b\r\nabc\r\n"),
    *(
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"HTTP/2.0",
        b"RTSP/1.0",
        b"HTTP/1.1 100 C\r\n\r\n",
        b"HTTP/1.1 101 S\r\n\r\n",
    ),
    *(
        b"204",
        b"304",
        b"199",
        b"600",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT ",
        b"HEAD ",
        b"http://a",
    ),
)
_NUMBER = re.compile(rb"[0-9]+")
_MEMBER = re.compile(rb'"\w+" ?: ?')
_LINE = re.compile(rb"[^\n]*\n")

#: A change: the bytes, a position (0 to 1), other bytes, and a count.
_Change = Callable[[bytes, float, bytes, int], bytes]


def _insert(data: bytes, where: float, what: bytes, count: int) -> bytes:
    at = int(where * len(data))
    return data[:at] + what + data[at:]


def _cut_out(data: bytes, where: float, what: bytes, count: int) -> bytes:
    at = int(where * len(data))
    return data[:at] + data[at + count :]


def _break_off(data: bytes, where: float, what: bytes, count: int) -> bytes:
    return data[: int(where * len(data))]


def _overwrite(data: bytes, where: float, what: bytes, count: int) -> bytes:
    at = int(where * len(data))
    return data[:at] + what + data[at + count :]


def _repeat(data: bytes, where: float, what: bytes, count: int) -> bytes:
    at = int(where * len(data))
    return data[:at] + data[at : at + 40] * (count + 1) + data[at + 40 :]


def _flip(data: bytes, where: float, what: bytes, count: int) -> bytes:
    at = int(where * len(data))
    return data[:at] + bytes(byte ^ (1 << count % 8) for byte in data[at : at + 1]) + data[at + 1 :]


def _swap_case(data: bytes, where: float, what: bytes, count: int) -> bytes:
    at = int(where * len(data))
    return data[:at] + data[at : at + 20].swapcase() + data[at + 20 :]


def _renumber(data: bytes, where: float, what: bytes, count: int) -> bytes:
    """Replace a number by another one."""
    return _at(_NUMBER, data, where, lambda found: _NUMBERS[count % len(_NUMBERS)])


def _repeat_member(data: bytes, where: float, what: bytes, count: int) -> bytes:
    """Repeat a JSON member, with another value first."""
    return _at(_MEMBER, data, where, lambda found: found + (what or b"0") + b"," + found)


def _fold(data: bytes, where: float, what: bytes, count: int) -> bytes:
    """Continue a line in the next one, or end it with half a line end."""
    ends = (b"\r\n ", b"\r\n\t", b"\n", b"\r", b"\r\r\n")
    return _at(_LINE, data, where, lambda found: found.rstrip(b"\r\n") + ends[count % len(ends)])


def _repeat_line(data: bytes, where: float, what: bytes, count: int) -> bytes:
    return _at(_LINE, data, where, lambda found: found * (count + 2))


def _at(pattern: re.Pattern[bytes], data: bytes, where: float, change: Callable[[bytes], bytes]) -> bytes:
    found = list(pattern.finditer(data))
    if not found:
        return data
    match = found[min(int(where * len(found)), len(found) - 1)]
    return data[: match.start()] + change(match.group()) + data[match.end() :]


_CHANGES: Sequence[_Change] = (
    *(_insert, _insert, _overwrite, _cut_out, _break_off, _repeat, _flip, _swap_case),
    *(_renumber, _renumber, _repeat_member, _fold, _fold, _repeat_line),
)


@st.composite
def mutated(draw: DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Return one of ``seeds`` after up to four changes, some of them with a part of another one."""
    data = draw(st.sampled_from(seeds))
    words = st.sampled_from(_TOKENS) | st.binary(max_size=4) | st.sampled_from(seeds)
    for change in draw(st.lists(st.sampled_from(_CHANGES), max_size=4)):
        where = draw(st.floats(0, 1, allow_subnormal=False))
        data = change(data, where, draw(words), draw(st.integers(0, 40)))
    return data[:32768]


def random_cuts(size: int) -> SearchStrategy[list[int]]:
    """Return positions between the reads of ``size`` bytes."""
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
