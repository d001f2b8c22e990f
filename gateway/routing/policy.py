"""Routing policies: how one worker is picked among equal candidates.

Owns: the choice, and nothing else. Must never enter: I/O, a clock, a dialect, a worker's state (the fleet has
sorted out who is usable), third-party packages.

To add a policy, write a class with ``pick`` and add it to ``POLICIES`` below under the name that
``--router-mode`` takes; the setting, its help and its check are derived from that list. ``pick`` is called by
``Fleet.lease`` (gateway/fleet/registry.py) for each request without a routing key, with the usable workers of
the request's model that have a free slot, two or more. It sees of each what ``Candidate`` lists, and nothing
of the request.

A policy that sees the prompt needs the request's ``Projection`` (gateway/formats/contract.py), which is known
in ``LiveExchange.lease`` (gateway/proxy/live.py): hand it from there through ``Fleet.lease`` to ``pick``.
``prompt_tokens`` of it is only the number of tokens. The ids are those of ``projection.hints().token_ids()``
(gateway/formats/routing_hints.py); for a batch they are those of its first prompt. The attribute
``token_ids`` is None for a prompt that is a text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """A worker as a policy sees it."""

    @property
    def occupancy(self) -> int:
        """Leases of this process, and its failed replies that still hold a place."""
        ...

    @property
    def load(self) -> int:
        """``occupancy``, and the requests of others when the worker last reported its load."""
        ...


W = TypeVar("W", bound=Candidate)

_occupancy = attrgetter("occupancy")


class Policy(Protocol):
    def pick(self, workers: Sequence[W]) -> W:
        """Return one of ``workers``, which is never empty."""
        ...


class LeastInFlight:
    """The worker with the lowest occupancy; ties at random, so that equal workers share a burst evenly."""

    def __init__(self, choice: random.Random) -> None:
        self._choice = choice

    def pick(self, workers: Sequence[W]) -> W:
        # Each step is one call into C: with hundreds of workers a Python loop costs more than the rest of the
        # request.
        loads = list(map(_occupancy, workers))
        fewest = min(loads)
        ties = loads.count(fewest)
        if ties == len(loads):
            return workers[int(self._choice.random() * ties)]
        index = loads.index(fewest)
        for _ in range(int(self._choice.random() * ties) if ties > 1 else 0):
            index = loads.index(fewest, index + 1)
        return workers[index]


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
    """Each worker in turn, beginning anywhere."""

    def __init__(self, choice: random.Random) -> None:
        self._next = choice.randrange(1 << 16)

    def pick(self, workers: Sequence[W]) -> W:
        self._next += 1
        return workers[self._next % len(workers)]


class Random:
    """Any worker, each with the same probability."""

    def __init__(self, choice: random.Random) -> None:
        self._choice = choice

    def pick(self, workers: Sequence[W]) -> W:
        return workers[int(self._choice.random() * len(workers))]


#: The name in --router-mode and the class of every policy. The only list of them.
POLICIES: Mapping[str, Callable[[random.Random], Policy]] = {
    "least_in_flight": LeastInFlight,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
    "random": Random,
}
