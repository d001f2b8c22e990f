"""Affinity: requests with the same key go to the same worker, by rendezvous hashing.

Owns: which worker is a key's home, and when another one is used. Must never enter: what makes a key, a
worker's state (the fleet has sorted out who is usable), I/O, a clock, third-party packages.

Each worker has a weight for each key; the worker with the highest weight is the key's home (Thaler and
Ravishankar, 1998). So gateways that share nothing agree without a table. A worker that leaves moves its own
keys only, to all others alike; one that joins takes its share and no more. A home with far more requests than
the average is passed over for the worker with the next highest weight: a key that everybody uses must not
overload one worker while others idle.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from enum import StrEnum
from hashlib import blake2b
from operator import attrgetter
from typing import Protocol, TypeVar

#: With fewer requests than this a home is never passed over: filling another cache costs more than waiting.
ALLOWANCE = 16

_LANE = 16


class Seeded(Protocol):
    """A worker as the affinity sees it."""

    @property
    def in_flight(self) -> int: ...

    @property
    def seed(self) -> bytes:
        """``seed_of`` its URL."""
        ...


W = TypeVar("W", bound=Seeded)

_seed, _in_flight = attrgetter("seed"), attrgetter("in_flight")


class Placement(StrEnum):
    """Whether a request with a key went to the key's home, and why not."""

    HOME = "home"
    UNAVAILABLE = "unavailable"  # its home is a member, but gets no requests now
    OVERLOADED = "overloaded"  # its home was passed over, or has no free slot


def seed_of(name: str) -> bytes:
    """Return the seed of a worker's weights: an odd number of 8 bytes, in a lane that fits a product."""
    return _number(name).to_bytes(_LANE, "little")


def weights(key: str, workers: Sequence[Seeded]) -> Sequence[int]:
    """Return the weight of each worker for ``key``; all weights differ.

    A weight is the low half of the product of the worker's seed and the key's number. Both are odd, so that
    different seeds give different products, and both are hashes, so that these are spread evenly. One
    multiplication makes all products: a Python loop over hundreds of workers costs more than the rest of a
    request.
    """
    lanes = int.from_bytes(b"".join(map(_seed, workers)), "little") * _number(key)
    size = len(workers)
    return struct.unpack(f"<{2 * size}Q", lanes.to_bytes(_LANE * size, "little"))[::2]


class RendezvousAffinity:
    """The assignment of keys to workers. A home with more than ``factor`` times the average number of
    requests is passed over; 0: never."""

    def __init__(self, factor: float = 1.5) -> None:
        self._factor = factor

    def assign(
        self, key: str, usable: Sequence[W], members: Sequence[W], full: Collection[W] = ()
    ) -> tuple[W, Placement]:
        """Return one of ``usable``, which is never empty, and whether it is the key's home.

        ``members`` are these workers, those that are ``full``, and those that get no requests now.
        """
        found = weights(key, usable)
        home = usable[found.index(max(found))]
        chosen = home
        if self._factor and home.in_flight >= ALLOWANCE:
            average = (sum(map(_in_flight, usable)) + 1) / len(usable)
            most = max(ALLOWANCE, self._factor * average)
            if home.in_flight >= most:
                # There is a worker below the limit, as not all can be above the average.
                order = sorted(range(len(found)), key=found.__getitem__, reverse=True)
                chosen = next(usable[index] for index in order if usable[index].in_flight < most)
        if len(members) > len(usable):
            of_all = weights(key, members)
            first = members[of_all.index(max(of_all))]
            if first is not home:
                return chosen, Placement.OVERLOADED if first in full else Placement.UNAVAILABLE
        return chosen, Placement.HOME if chosen is home else Placement.OVERLOADED


def _number(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") | 1
