"""NaN and Infinity in events, which Python's ``json`` writes and msgspec does not read.

Owns: the numbers that stand for them while events are converted or joined. Must never enter: how that is
done.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# No engine writes a number like these. Each is as long as what it stands for.
_STAND_INS = {b"NaN": b"0E0", b"Infinity": b"0E000000"}
_ORIGINALS = {stand_in: word for word, stand_in in _STAND_INS.items()}
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_WORDS = re.compile(_STRING + rb"|NaN|Infinity", re.DOTALL)
_NUMBERS = re.compile(_STRING + rb"|0E0(?:00000)?", re.DOTALL)


def has_not_finite(document: bytes) -> bool:
    """Return True if ``document`` may contain one, perhaps inside a string."""
    return document.find(b"NaN") >= 0 or document.find(b"Infinity") >= 0


def to_finite(document: bytes) -> bytes:
    """Return ``document`` with stand-ins."""
    return _replaced(_WORDS, _STAND_INS, document)


def from_finite(document: bytes) -> bytes:
    """Return ``document`` with what the stand-ins stand for."""
    return _replaced(_NUMBERS, _ORIGINALS, document)


def _replaced(pattern: re.Pattern[bytes], words: Mapping[bytes, bytes], document: bytes) -> bytes:
    return pattern.sub(lambda found: words.get(found[0], found[0]), document)
