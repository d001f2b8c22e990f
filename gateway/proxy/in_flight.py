"""Which exchanges are in flight, by the ids that clients and engines know them under.

Owns: choosing a dispatch id that can touch no other exchange, and finding exchanges by public id. Must never
enter: I/O, a clock of its own, a dialect.

An engine may match ids by prefix when it aborts, so of two ids in flight none may be a prefix of the other.
The ids in use are kept sorted; as none is a prefix of another, only a new id's two neighbours can clash.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from random import Random
from typing import Generic, TypeVar

from gateway.formats.contract import Ids

T = TypeVar("T")

#: A client's own id that starts like this is never used as it is, so a private one can always be had.
RESERVED = "~"


class InFlight(Generic[T]):
    """Ids of running exchanges. ``T`` is whatever the owner wants to find by public id.

    ``shared``: other processes have exchanges at the same workers. Their ids cannot be seen from here, so no
    client's own is safe, and all are private.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._used: list[str] = []
        # Ids must differ, nobody has to be kept from guessing them: no system call for each.
        self._choice = Random()
        self._by_public: dict[str, list[T]] = {}

    def __len__(self) -> int:
        """Number of dispatch ids in use, lingering ones included."""
        return len(self._used)

    def claim(self, named: tuple[str, ...], usable: bool = True) -> Ids:
        """Ids for a new exchange whose client named ``named`` (() = none), taken until ``release``.

        The client's own are used when ``usable`` and safe, else private, random ones.
        """
        if not named:
            private = self._make(1)
            return Ids(private, private)
        own = usable and not self._shared and not any(name.startswith(RESERVED) for name in named)
        if own and self._take_all(named):
            return Ids(named, named)
        return Ids(named, self._make(len(named)))

    def release(self, ids: Ids) -> None:
        """Give the dispatch ids back. Every claim is released exactly once; KeyError otherwise."""
        used = self._used
        for dispatch in ids.dispatch:
            place = bisect_left(used, dispatch)
            if place == len(used) or used[place] != dispatch:
                raise KeyError(dispatch)
            del used[place]

    def enter(self, ids: Ids, item: T) -> None:
        """Make ``item`` findable under its public ids."""
        for public in ids.public:
            items = self._by_public.get(public)
            if items is None:
                self._by_public[public] = [item]
            else:
                items.append(item)

    def leave(self, ids: Ids, item: T) -> None:
        """Undo ``enter``."""
        for public in ids.public:
            items = self._by_public[public]
            if items == [item]:
                del self._by_public[public]
            else:
                items.remove(item)

    def find(self, public: str) -> tuple[T, ...]:
        """All running exchanges that a client knows as ``public``."""
        return tuple(self._by_public.get(public, ()))

    def all(self) -> Iterator[T]:
        """Every running exchange, once for each of its ids."""
        for items in tuple(self._by_public.values()):
            yield from tuple(items)

    def _take_all(self, names: tuple[str, ...]) -> bool:
        for taken, name in enumerate(names):
            if not name or not self._take(name):
                self.release(Ids((), names[:taken]))
                return False
        return True

    def _take(self, name: str) -> bool:
        used = self._used
        place = bisect_left(used, name)
        if place < len(used) and used[place].startswith(name):
            return False
        if place and name.startswith(used[place - 1]):
            return False
        used.insert(place, name)
        return True

    def _make(self, count: int) -> tuple[str, ...]:
        base = self._random()
        while True:
            made = (base,) if count == 1 else tuple(f"{base}{index:08x}" for index in range(count))
            if self._take_all(made):
                return made
            # Some client's own id, "7" say, is how this one begins; none begins like this.
            base = RESERVED + self._random()

    def _random(self) -> str:
        return self._choice.getrandbits(128).to_bytes(16, "big").hex()
