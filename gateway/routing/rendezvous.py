"""Where requests with one key go: every key has a home among the workers, and nobody keeps a table of them.

Owns: which worker is a key's home, and when it is passed over. Must never enter: what makes a key, a worker's
state (the fleet has sorted out who is usable), I/O, a clock, third-party packages.

Each worker has a weight for each key, and the heaviest one is the key's home (rendezvous hashing). So
gateways that share nothing agree; a worker that goes moves its own keys only, to all others alike, and one
that comes takes its share and no more. A home that has far more to do than the average is passed over for the
next heaviest: a key that everybody uses must not bury one worker while others idle.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from enum import StrEnum
from hashlib import blake2b
from operator import attrgetter
from typing import Protocol, TypeVar

#: With fewer requests than this a home is never passed over: to begin another cache costs more than to share.
ALLOWANCE = 16

_LANE = 16


class Seeded(Protocol):
    """What is looked at of a worker."""

    @property
    def in_flight(self) -> int: ...

    @property
    def seed(self) -> bytes:
        """``seed_of`` what it is called, everywhere."""
        ...


W = TypeVar("W", bound=Seeded)

_seed, _in_flight = attrgetter("seed"), attrgetter("in_flight")


class Placement(StrEnum):
    """What became of a key's wish for its home."""

    HOME = "home"
    UNAVAILABLE = "unavailable"  # its home is a member, but not among those that requests go to now
    OVERLOADED = "overloaded"  # its home was passed over, or has all that it may have


def seed_of(name: str) -> bytes:
    """What weights are made of: an odd number of eight bytes, in a lane that has room for a product."""
    return _number(name).to_bytes(_LANE, "little")


def weights(key: str, workers: Sequence[Seeded]) -> Sequence[int]:
    """The weight of each worker for ``key``, no two alike.

    That is the low half of its seed times the key's number: as odd numbers they keep apart what differs, and
    as a hash's they are spread evenly. One multiplication makes all products, as a loop of our own over
    hundreds of workers would cost more than the rest of a request.
    """
    lanes = int.from_bytes(b"".join(map(_seed, workers)), "little") * _number(key)
    size = len(workers)
    return struct.unpack(f"<{2 * size}Q", lanes.to_bytes(_LANE * size, "little"))[::2]


class RendezvousAffinity:
    """``factor``: a home with more than that many times the average of requests is passed over; 0: never."""

    def __init__(self, factor: float = 1.5) -> None:
        self._factor = factor

    def assign(
        self, key: str, usable: Sequence[W], members: Sequence[W], full: Collection[W] = ()
    ) -> tuple[W, Placement]:
        """One of ``usable``, which is never empty. ``members`` are these, those that are ``full``, and those
        that are away."""
        found = weights(key, usable)
        home = usable[found.index(max(found))]
        chosen = home
        if self._factor and home.in_flight >= ALLOWANCE:
            chosen = self._relief(found, usable, home)
        if len(members) > len(usable):
            of_all = weights(key, members)
            lost = members[of_all.index(max(of_all))]
            if lost is not home:
                return chosen, Placement.OVERLOADED if lost in full else Placement.UNAVAILABLE
        return chosen, Placement.HOME if chosen is home else Placement.OVERLOADED

    def _relief(self, found: Sequence[int], usable: Sequence[W], home: W) -> W:
        """The heaviest that has not too much to do. There is one, as not all are over the average."""
        average = (sum(map(_in_flight, usable)) + 1) / len(usable)
        most = max(ALLOWANCE, self._factor * average)
        if home.in_flight < most:
            return home
        order = sorted(range(len(found)), key=found.__getitem__, reverse=True)
        return next(usable[place] for place in order if usable[place].in_flight < most)


def _number(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") | 1
