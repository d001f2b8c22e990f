"""JSON as Python's ``json`` accepts it: NaN, lone surrogates, UTF-16 and UTF-32, a byte order mark.

Owns: a copy of such a text that any parser reads. Must never enter: a dialect, changing what is forwarded,
I/O, third-party packages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice

#: Bytes. A larger body must be plain JSON, so that the repair below takes milliseconds.
REPAIR_LIMIT = 4 * 1024 * 1024
#: The most places of one kind that are repaired; a body with more is parsed as it is.
PLACES_LIMIT = 10_000

# Both match from their start to the next place to repair, so only repairs cost a step of Python.
_NOT_FINITE = re.compile(rb'(?:[^"NI]++|"(?:[^"\\]++|\\.)*+")*+(NaN|Infinity)', re.DOTALL)
_UNPAIRED_SURROGATE = re.compile(
    rb"(?:[^\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u[dD][89a-fA-F]).)*+"
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2})",
    re.DOTALL,
)
# Each has the length of what it replaces, so that a copy is changed in place.
_NUMBERS = {b"NaN": b"1e0", b"Infinity": b"1e000000"}
_CHARACTER = rb"\ufffd"


def plain_json(body: bytes) -> bytes:
    """Return a copy to be parsed: UTF-8, and plain JSON if only the extensions above prevented that.

    Raises UnicodeDecodeError if the bytes are not text.
    """
    text = body.decode(json.detect_encoding(body), "surrogatepass")
    copy = bytearray(text.encode("utf-8", "replace"))
    if len(copy) <= REPAIR_LIMIT:
        for start, end in islice(_repair_positions(_NOT_FINITE, bytes(copy)), PLACES_LIMIT):
            copy[start:end] = _NUMBERS[bytes(copy[start:end])]
        for start, end in islice(_repair_positions(_UNPAIRED_SURROGATE, bytes(copy)), PLACES_LIMIT):
            copy[start:end] = _CHARACTER
    return bytes(copy)


def _repair_positions(pattern: re.Pattern[bytes], text: bytes) -> Iterator[tuple[int, int]]:
    # Not finditer: where no match begins it would search again one byte later, and so on to the end.
    match = pattern.match(text)
    while match is not None:
        yield match.span(1)
        match = pattern.match(text, match.end())
