"""Lenient parsing: what the engine's own parsers accept beyond the usual types.

Owns: pydantic's lax conversions of a boolean and an integer (vLLM 0.33.0). Must never enter: the fields of a
request, changing what is forwarded.
"""

from __future__ import annotations

import msgspec

_TRUE_WORDS = frozenset({"1", "on", "t", "true", "y", "yes"})


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
