"""Exponential backoff with jitter.

Owns: the delays after failures. Must never enter: what failed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffDelays:
    """The delays of a Backoff, in seconds.

    ``slow`` is for failures that only a person can mend; ``most`` bounds the delay that a server asks for.
    """

    first: float = 0.5
    longest: float = 10.0
    slow: float = 30.0
    most: float = 300.0


class Backoff:
    """A delay that doubles from ``first`` to ``longest`` with each failure until ``reset``."""

    def __init__(self, delays: BackoffDelays, random_source: random.Random) -> None:
        self._delays = delays
        self._random = random_source
        self._failures = 0

    @property
    def fresh(self) -> bool:
        """True if nothing has failed since the last ``reset``."""
        return self._failures == 0

    def reset(self) -> None:
        """Begin again with the first delay, after a success."""
        self._failures = 0

    def failed(self, *, slow: bool = False, at_least: float = 0.0) -> float:
        """Return the seconds to wait now; ``at_least`` is the delay that the server asked for.

        The result is between half of the delay and all of it, so that gateways which lost the same server do
        not reconnect at the same time. The delay that a server asks for is only ever made longer.
        """
        doubled = min(self._delays.first * 2 ** min(self._failures, 30), self._delays.longest)
        delay = self._delays.slow if slow else doubled
        self._failures += 1
        requested = min(at_least, self._delays.most)
        return max(delay * (1 + self._random.random()) / 2, requested * (1 + self._random.random() / 10))
