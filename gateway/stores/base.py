"""The protocol of a store: where the records of workers are kept, and how a gateway follows their changes.

Owns: the protocol, what can change, and its failures. Must never enter: a store, the fleet.

An outage of a store neither ends ``watch``, nor empties the fleet, nor raises out of ``watch``. The fleet
stays as it was, the store tries again with growing delays, and ``healthy`` and ``reason`` report the outage.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.stores.last_writer_wins.map import Updates
from gateway.stores.record import WorkerRecord


class StoreUnavailable(Exception):
    """The store cannot be reached now. The message says why, and contains no secret.

    The write may still happen later: a store that hangs can have received the call.
    """


class ReadOnlyStore(Exception):
    """The store cannot be written to by the gateway; the message says who writes the records."""


@dataclass(frozen=True, slots=True)
class Reset:
    """All records, by URL, and all cordons. A record that is not among them was removed."""

    records: Mapping[str, WorkerRecord]
    cordons: Updates = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Put:
    """An addition or change of a record."""

    record: WorkerRecord


@dataclass(frozen=True, slots=True)
class Gone:
    """The removal of the record of a URL."""

    url: str


@dataclass(frozen=True, slots=True)
class CordonsChanged:
    """A change of cordons, also of URLs that have no record.

    An entry is undated if the store has no order for it: a person edited the file, for example.
    """

    cordons: Updates


Change = Reset | Put | Gone | CordonsChanged


class Store(Protocol):
    """A store of worker records by URL, for one event loop."""

    @property
    def healthy(self) -> bool:
        """True while the changes that ``watch`` yields are known to be up to date."""
        ...

    @property
    def reason(self) -> str:
        """Why the store is not healthy, in words for an operator; "" if it is."""
        ...

    @property
    def writable(self) -> bool:
        """False: ``put`` and ``delete`` raise ReadOnlyStore."""
        ...

    @property
    def keeps_cordons(self) -> bool:
        """False: ``write_cordons`` does nothing, and ``watch`` never yields a cordon."""
        ...

    def watch(self) -> AsyncGenerator[Change, None]:
        """Yield a Reset first, then each change in order, and a Reset again after changes were missed.

        It ends when the store is closed, and raises nothing. Records that cannot be parsed are left out, and
        logged.
        """
        ...

    async def put(self, record: WorkerRecord, *, ttl: float | None = None) -> None:
        """Write ``record`` in place of the previous one of its URL.

        With a ``ttl`` (seconds) the record expires that long after this store was closed or its process
        exited; until then this store renews it. Without, the record keeps the TTL of the previous one,
        whoever renews that, or does not expire. Raises StoreUnavailable within a second, and ReadOnlyStore.
        """
        ...

    async def delete(self, url: str) -> bool:
        """Remove the records of all spellings of ``url``; return False if there is none. Raises as ``put``
        does."""
        ...

    async def write_cordons(self, updates: Updates) -> None:
        """Write cordons (gateway.fleet.cordons). Of two writes of one reason the later one counts, in
        whatever order they arrive; for that, a removed reason is remembered for a while. Cordons outlive
        records and their TTLs. Raises StoreUnavailable within a second."""
        ...

    async def close(self) -> None:
        """End every ``watch``, and stop renewing records."""
        ...
