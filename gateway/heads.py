"""What a head may be: of a client's request, of a worker's reply.

Owns: these two numbers. Must never enter: where they are set, what is done with a larger head.
"""

from __future__ import annotations

from typing import NamedTuple


class HeadLimits(NamedTuple):
    """``size`` is in bytes, and bounds what else comes in a row that is no body; ``lines`` are headers."""

    size: int = 256 * 1024
    lines: int = 256


DEFAULT_HEAD = HeadLimits()
