"""Access to members of the API server's objects, any of which may be missing or of the wrong type.

Owns: functions that never raise, for JSON of others. Must never enter: what a member means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]

_NOTHING: Object = {}


def part(value: object, *path: str) -> Object:
    """Return the object at ``path``, or an empty one."""
    found = _at(value, path)
    return found if isinstance(found, dict) else _NOTHING


def parts(value: object, *path: str) -> Iterator[Object]:
    """Yield the objects in the list at ``path``."""
    found = _at(value, path)
    if isinstance(found, list):
        yield from (each for each in found if isinstance(each, dict))


def text(value: object, *path: str) -> str:
    """Return the string at ``path``, or an empty one."""
    found = _at(value, path)
    return found if isinstance(found, str) else ""


def texts(value: object, *path: str) -> Mapping[str, str]:
    """Return the members of the object at ``path`` that are strings."""
    return {name: found for name, found in part(value, *path).items() if isinstance(found, str)}


def strings(value: object, *path: str) -> Iterator[str]:
    """Yield the strings in the list at ``path``."""
    found = _at(value, path)
    if isinstance(found, list):
        yield from (each for each in found if isinstance(each, str))


def number(value: object, *path: str) -> int | None:
    """Return the integer at ``path``, or None."""
    found = _at(value, path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def flag(value: object, *path: str, default: bool) -> bool:
    """Return the boolean at ``path``, or ``default``."""
    found = _at(value, path)
    return found if isinstance(found, bool) else default


def _at(value: object, path: tuple[str, ...]) -> object:
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value
