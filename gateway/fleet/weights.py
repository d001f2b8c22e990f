"""Comparison of weight versions.

Owns: whether one version reaches another. Must never enter: what follows for a worker.
"""

from __future__ import annotations

import re

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def reaches(version: str | None, least: str) -> bool:
    """Return True if ``version`` equals ``least``, or both are integers and it is larger."""
    if version is None:
        return False
    if _INTEGER.fullmatch(version) and _INTEGER.fullmatch(least):
        return int(version) >= int(least)
    return version == least
