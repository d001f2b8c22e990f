"""Whether weights are new enough.

Owns: comparing two weight versions. Must never enter: who holds a worker because of it.
"""

from __future__ import annotations

import re

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def reaches(version: str | None, least: str) -> bool:
    """Whether ``version`` is ``least`` or, where both are integers, above it; one not told never does."""
    if version is None:
        return False
    if _INTEGER.fullmatch(version) and _INTEGER.fullmatch(least):
        return int(version) >= int(least)
    return version == least
