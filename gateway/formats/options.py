"""Options of a format, given as text.

Owns: the kinds of values and the errors for bad ones. Must never enter: the name of an option, the source of
its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

#: A function of an option's name and text that returns its value. Raises ValueError, which names the option.
Kind = Callable[[str, str], Any]

_FLAGS = {"true": True, "false": False}
_COUNT = re.compile(r"[1-9][0-9]{0,17}")


def read(options: Mapping[str, str], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """Return the values of ``options``. Raises ValueError for a bad value or an unknown option."""
    for name in options:
        if name not in kinds:
            raise ValueError(f"{name}: this format has no such setting")
    return {name: kinds[name](name, text) for name, text in options.items()}


def flag(name: str, text: str) -> bool:
    """Read ``true`` or ``false``."""
    if text not in _FLAGS:
        raise ValueError(f"{name}: must be true or false, not {text!r}")
    return _FLAGS[text]


def count(name: str, text: str) -> int:
    """Read a whole number above 0, of at most 18 digits."""
    if _COUNT.fullmatch(text) is None:
        raise ValueError(f"{name}: must be a whole number above 0, not {text!r}")
    return int(text)


def mebibytes(name: str, text: str) -> int:
    """Read a ``count`` of MiB and return it in bytes."""
    return count(name, text) * 1024 * 1024


def one_of(*words: str) -> Kind:
    """Return a kind that accepts exactly ``words``."""

    def read_word(name: str, text: str) -> str:
        if text not in words:
            raise ValueError(f"{name}: {text!r} is none of {', '.join(words)}")
        return text

    return read_word
