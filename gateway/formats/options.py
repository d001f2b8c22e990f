"""Settings of single formats, which come as text.

Owns: the kinds of values there are, and what is said of a bad one. Must never enter: a setting's name, where
its text comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

#: Reads the text of the option that is named first. Raises ValueError, which names it.
Kind = Callable[[str, str], Any]

_FLAGS = {"true": True, "false": False}
_COUNT = re.compile(r"[1-9][0-9]{0,17}")


def read(options: Mapping[str, str], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """The values of ``options``, each of its kind. Raises ValueError for a bad one, or one without a kind."""
    for name in options:
        if name not in kinds:
            raise ValueError(f"{name}: this format has no such setting")
    return {name: kinds[name](name, text) for name, text in options.items()}


def flag(name: str, text: str) -> bool:
    """``true`` or ``false``."""
    if text not in _FLAGS:
        raise ValueError(f"{name}: must be true or false, not {text!r}")
    return _FLAGS[text]


def count(name: str, text: str) -> int:
    """A whole number above 0, of 18 digits at the most."""
    if _COUNT.fullmatch(text) is None:
        raise ValueError(f"{name}: must be a whole number above 0, not {text!r}")
    return int(text)


def one_of(*words: str) -> Kind:
    """One of ``words``, as it is."""

    def read_word(name: str, text: str) -> str:
        if text not in words:
            raise ValueError(f"{name}: {text!r} is none of {', '.join(words)}")
        return text

    return read_word
