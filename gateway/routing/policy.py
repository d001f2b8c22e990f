"""How one worker is picked among those that could serve a request.

Owns: the choice, and nothing else. Must never enter: I/O, a clock, a dialect, a worker's state (the fleet has
sorted out who is usable), third-party packages.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Protocol, TypeVar


class Loaded(Protocol):
    """What a policy may look at."""

    @property
    def in_flight(self) -> int:
        """Leases of this gateway, exact."""
        ...

    @property
    def load(self) -> int:
        """The same, and requests that others gave to the worker, as far as it told."""
        ...


W = TypeVar("W", bound=Loaded)

_load = attrgetter("in_flight")


class Policy(Protocol):
    def pick(self, workers: Sequence[W]) -> W:
        """One of ``workers``, which is never empty."""
        ...


class LeastInFlight:
    """The worker with the fewest leases; ties at random, so that equal workers share a burst evenly."""

    def __init__(self, choice: random.Random) -> None:
        self._choice = choice

    def pick(self, workers: Sequence[W]) -> W:
        # One pass in C each: with hundreds of workers a loop of our own would cost more than all the rest.
        loads = list(map(_load, workers))
        fewest = min(loads)
        ties = loads.count(fewest)
        if ties == len(loads):
            return workers[int(self._choice.random() * ties)]
        place = loads.index(fewest)
        for _ in range(int(self._choice.random() * ties) if ties > 1 else 0):
            place = loads.index(fewest, place + 1)
        return workers[place]


class LeastLoaded:
    """The worker with the least load, requests of others included; ties at random."""

    def __init__(self, choice: random.Random) -> None:
        self._choice = choice

    def pick(self, workers: Sequence[W]) -> W:
        loads = [worker.load for worker in workers]
        least = min(loads)
        ties = [worker for worker, load in zip(workers, loads, strict=True) if load == least]
        return ties[0] if len(ties) == 1 else ties[int(self._choice.random() * len(ties))]


class RoundRobin:
    """Each worker in turn."""

    def __init__(self, choice: random.Random) -> None:
        self._next = choice.randrange(1 << 16)

    def pick(self, workers: Sequence[W]) -> W:
        self._next += 1
        return workers[self._next % len(workers)]


class Random:
    """Any worker, all alike."""

    def __init__(self, choice: random.Random) -> None:
        self._choice = choice

    def pick(self, workers: Sequence[W]) -> W:
        return workers[int(self._choice.random() * len(workers))]


#: Name in settings -> how to make one.
POLICIES: Mapping[str, Callable[[random.Random], Policy]] = {
    "least_in_flight": LeastInFlight,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
    "random": Random,
}
