"""Lenient parsing: what the engine's own parsers accept beyond plain JSON, read without building it.

Owns: JSON as Python's ``json`` accepts it (NaN, lone surrogates, UTF-16, a byte order mark), and pydantic's
lax conversions of a boolean and an integer (vLLM 0.33.0). Must never enter: the fields of a request, changing
what is forwarded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice

import msgspec

from gateway.errors import InvalidRequest

#: Bytes. A larger body must be plain JSON, so that the repair below takes milliseconds.
REPAIR_LIMIT = 4 * 1024 * 1024
#: The most places of one kind that are repaired; a body with more is parsed as it is.
PLACES_LIMIT = 10_000

NOT_TEXT = "The body is not valid UTF-8 text"

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

_TRUE_WORDS = frozenset({"1", "on", "t", "true", "y", "yes"})


def plain_json(body: bytes) -> bytes:
    """Return a copy to be parsed: UTF-8, and plain JSON if only the extensions above prevented that.

    Raises InvalidRequest if the bytes are not text.
    """
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
    except UnicodeDecodeError as error:
        raise InvalidRequest(NOT_TEXT, cause=error) from error
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


def flag(value: object) -> bool:
    """Return a boolean as pydantic reads it; False for what it would refuse."""
    if isinstance(value, str):
        return value.lower() in _TRUE_WORDS
    return isinstance(value, int | float) and value == 1


def integer(value: object) -> int | None:
    """Return an integer as pydantic reads it; None for what it would refuse."""
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
    """Raise UnicodeDecodeError unless ``data`` is UTF-8; msgspec does not decode the strings it skips."""
    if not data.isascii():
        data.decode()


def count_items(raw: msgspec.Raw | bytes) -> int | None:
    """Return the number of items of a flat JSON list, None for anything else, without building the list."""
    text = bytes(raw)
    if not text.startswith(b"["):
        return None
    commas = text.count(b",")
    return commas + 1 if commas or text[1:-1].strip() else 0
