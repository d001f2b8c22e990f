"""How long to wait after a failure.

Owns: growing pauses that differ between gateways. Must never enter: what failed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffDelays:
    """In seconds. ``slow`` is for what only a person can mend; ``most`` bounds what a server may ask for."""

    first: float = 0.5
    longest: float = 10.0
    slow: float = 30.0
    most: float = 300.0


class Backoff:
    """Doubles from ``first`` to ``longest`` with each failure until ``reset``."""

    def __init__(self, pauses: BackoffDelays, chance: random.Random) -> None:
        self._pauses = pauses
        self._chance = chance
        self._failures = 0

    @property
    def fresh(self) -> bool:
        """Whether nothing has failed since something worked."""
        return self._failures == 0

    def reset(self) -> None:
        """Something worked: the next failure is a first one."""
        self._failures = 0

    def failed(self, *, slow: bool = False, at_least: float = 0.0) -> float:
        """Seconds to wait now, ``at_least`` those that the server asked for.

        Between half of the pause and all of it, so that gateways which lost one server do not come back in
        step. What a server asks for is never cut short by that, only made longer.
        """
        doubled = min(self._pauses.first * 2 ** min(self._failures, 30), self._pauses.longest)
        pause = self._pauses.slow if slow else doubled
        self._failures += 1
        asked = min(at_least, self._pauses.most)
        return max(pause * (1 + self._chance.random()) / 2, asked * (1 + self._chance.random() / 10))
