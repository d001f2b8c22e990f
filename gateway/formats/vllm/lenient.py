"""Reading what the engine's own parsers read, without building it.

Owns: JSON as Python's ``json`` takes it (NaN, lone surrogates, UTF-16, a byte order mark) and pydantic's lax
conversions of a flag and a number. Must never enter: the fields of a request, changing what is passed on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice

import msgspec

from gateway.errors import InvalidRequest

#: Above this, in bytes, a body is taken as plain JSON or not at all, so that the repair below takes moments.
REPAIR_LIMIT = 4 * 1024 * 1024
#: As many places of one kind are repaired; with more the body is taken as it is.
PLACES_LIMIT = 10_000

NOT_TEXT = "The body is not valid UTF-8 text"

# Both run from where they start to the next place to repair, so only repairs cost a step of Python.
_NOT_FINITE = re.compile(rb'(?:[^"NI]++|"(?:[^"\\]++|\\.)*+")*+(NaN|Infinity)', re.DOTALL)
_LONE_SURROGATE = re.compile(
    rb"(?:[^\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u[dD][89a-fA-F]).)*+"
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2})",
    re.DOTALL,
)
# Of the same length as what they stand in for, so that a copy is changed in place.
_NUMBERS = {b"NaN": b"1e0", b"Infinity": b"1e000000"}
_CHARACTER = rb"\ufffd"

_TRUE_WORDS = frozenset({"1", "on", "t", "true", "y", "yes"})


def plain_json(body: bytes) -> bytes:
    """A copy to peek at: UTF-8, and plain JSON where only the extensions above stood in the way.

    Raises InvalidRequest when the bytes are not text.
    """
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
    except UnicodeDecodeError as error:
        raise InvalidRequest(NOT_TEXT, cause=error) from error
    copy = bytearray(text.encode("utf-8", "replace"))
    if len(copy) <= REPAIR_LIMIT:
        for start, end in islice(_places(_NOT_FINITE, bytes(copy)), PLACES_LIMIT):
            copy[start:end] = _NUMBERS[bytes(copy[start:end])]
        for start, end in islice(_places(_LONE_SURROGATE, bytes(copy)), PLACES_LIMIT):
            copy[start:end] = _CHARACTER
    return bytes(copy)


def _places(pattern: re.Pattern[bytes], text: bytes) -> Iterator[tuple[int, int]]:
    # Not finditer: where no match begins it would look again one byte on, and so on to the end.
    match = pattern.match(text)
    while match is not None:
        yield match.span(1)
        match = pattern.match(text, match.end())


def flag(value: object) -> bool:
    """A boolean as pydantic reads it; what it would refuse is False."""
    if isinstance(value, str):
        return value.lower() in _TRUE_WORDS
    return isinstance(value, int | float) and value == 1


def integer(value: object) -> int | None:
    """A whole number as pydantic reads it; what it would refuse is None."""
    if isinstance(value, str):
        value = _number(value)
    if isinstance(value, int):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def check_utf8(data: bytes) -> None:
    """Raises UnicodeDecodeError; msgspec does not look into the strings it skips."""
    if not data.isascii():
        data.decode()


def count_items(raw: msgspec.Raw | bytes) -> int | None:
    """Number of items of a flat JSON list, None for anything else; the list is never built."""
    text = bytes(raw)
    if not text.startswith(b"["):
        return None
    commas = text.count(b",")
    return commas + 1 if commas or text[1:-1].strip() else 0
