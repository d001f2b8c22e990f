"""The index of the exchanges in flight, by the ids that clients and engines know them under.

Owns: choosing a dispatch id that cannot clash with another exchange, and finding exchanges by public id. Must
never enter: I/O, a clock of its own, a dialect.

An engine may match ids by prefix when it aborts, so of two ids in flight none may be a prefix of the other.
The ids in use are kept sorted; as none is a prefix of another, only a new id's two neighbours can clash.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ids

T = TypeVar("T")

#: A client's own id with this prefix is never used, so that a private id can always be made.
RESERVED = "~"


class InFlightEntry(Protocol):
    """An exchange in flight, as aborts see it.

    ``aborted_before_dispatch`` are public ids and prompt numbers that were aborted while no worker had the
    exchange; they are sent to the worker that it is dispatched to.
    """

    aborted_before_dispatch: frozenset[str | int]

    @property
    def format(self) -> AnyFormat: ...

    @property
    def path(self) -> str:
        """The path of its route."""
        ...

    @property
    def request(self) -> Any:
        """The request in the format's own type."""
        ...

    @property
    def ids(self) -> Ids: ...

    @property
    def worker(self) -> Worker | None:
        """The worker that has the request; None: no worker has it."""
        ...

    @property
    def address(self) -> str | None:
        """The IP address of the process that has the request; None: no worker has it."""
        ...

    @property
    def aborted_entirely(self) -> bool:
        """True if all of its ids were aborted before dispatch."""
        ...

    def abort_locally(self) -> None:
        """End the exchange without the engine's help."""
        ...


class OtherProcesses(Protocol):
    """The ids of clients that other processes of this gateway have in flight at the same workers."""

    def claim(self, names: tuple[str, ...]) -> bool:
        """Take ``names`` until ``release``; return False if ids of other processes may clash with them."""
        ...

    def release(self, names: tuple[str, ...]) -> None:
        """Give ``names`` back."""
        ...


class InFlight(Generic[T]):
    """The ids of running exchanges, and what is found by them: entries of type ``T``.

    ``elsewhere`` is None if there is only this process. The private ids of other processes are not known
    here, so with several processes each has the reserved prefix, which no client's own id has.
    """

    def __init__(self, elsewhere: OtherProcesses | None = None) -> None:
        self._elsewhere = elsewhere
        self._used: list[str] = []
        # Ids have to differ, not to be unguessable, so a system call for each is saved.
        self._random_bits = Random()
        self._by_public: dict[str, list[T]] = {}

    def __len__(self) -> int:
        """Return the number of dispatch ids in use, lingering ones included."""
        return len(self._used)

    def claim(self, named: tuple[str, ...], usable: bool = True) -> Ids:
        """Take ids for a new exchange whose client chose ``named`` (() = none), until ``release``.

        The client's own ids are used if they are ``usable`` and safe, else private, random ones.
        """
        if not named:
            private = self._make(1)
            return Ids(private, private)
        own = usable and not any(name.startswith(RESERVED) for name in named)
        if own and self._take_all(named):
            if self._elsewhere is None or self._elsewhere.claim(named):
                return Ids(named, named)
            self._give_back(named)
        return Ids(named, self._make(len(named)))

    def release(self, ids: Ids) -> None:
        """Give the dispatch ids back. Raises KeyError unless each claim is released exactly once."""
        self._give_back(ids.dispatch)
        if self._elsewhere is not None and not ids.dispatch[0].startswith(RESERVED):
            self._elsewhere.release(ids.dispatch)

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
        """Return all running exchanges that a client knows as ``public``."""
        return tuple(self._by_public.get(public, ()))

    def all(self) -> Iterator[T]:
        """Yield every running exchange, once for each of its ids."""
        for items in tuple(self._by_public.values()):
            yield from tuple(items)

    def _take_all(self, names: tuple[str, ...]) -> bool:
        for taken, name in enumerate(names):
            if not name or not self._take(name):
                self._give_back(names[:taken])
                return False
        return True

    def _give_back(self, names: tuple[str, ...]) -> None:
        used = self._used
        for dispatch in names:
            position = bisect_left(used, dispatch)
            if position == len(used) or used[position] != dispatch:
                raise KeyError(dispatch)
            del used[position]

    def _take(self, name: str) -> bool:
        used = self._used
        position = bisect_left(used, name)
        if position < len(used) and used[position].startswith(name):
            return False
        if position and name.startswith(used[position - 1]):
            return False
        used.insert(position, name)
        return True

    def _make(self, count: int) -> tuple[str, ...]:
        base = self._random_id() if self._elsewhere is None else RESERVED + self._random_id()
        while True:
            made = (base,) if count == 1 else tuple(f"{base}{index:08x}" for index in range(count))
            if self._take_all(made):
                return made
            # A client's own id, "7" for example, is a prefix of this one. No id of a client has this prefix.
            base = RESERVED + self._random_id()

    def _random_id(self) -> str:
        return self._random_bits.getrandbits(128).to_bytes(16, "big").hex()
