"""What a store is: where the records of workers live, and how a gateway hears of them.

Owns: the protocol, what can change, and its failures. Must never enter: a store, the fleet.

A store outlives what reads it: an outage never ends ``watch``, empties the fleet or raises out of it. It goes
on from what it knows, tries again with growing pauses, and says so in ``healthy`` and ``reason``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Updates, Versioned


class StoreUnavailable(Exception):
    """It cannot be reached now; the message says why, without a secret.

    Nothing was written as far as is known: one that hangs may have got the call, and do it later.
    """


class ReadOnlyStore(Exception):
    """Its records are written by others; the message says by whom."""


@dataclass(frozen=True, slots=True)
class Reset:
    """All records, by URL, and all that is known of cordons. A record that is not among them was removed."""

    records: Mapping[str, WorkerRecord]
    cordons: Updates = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Put:
    """A record is new, or another than before."""

    record: WorkerRecord


@dataclass(frozen=True, slots=True)
class Gone:
    """There is no record of this URL any more."""

    url: str


@dataclass(frozen=True, slots=True)
class CordonsChanged:
    """Cordons of a URL were added or removed, by reason. The URL need not have a record.

    An entry is undated if the store has no order for it: a person edited the file, for example.
    """

    url: str
    reasons: Mapping[str, Versioned]


Change = Reset | Put | Gone | CordonsChanged


class Store(Protocol):
    """Records of workers, by URL. Used by one event loop."""

    @property
    def healthy(self) -> bool:
        """Whether what was told is known to be what there is."""
        ...

    @property
    def reason(self) -> str:
        """Why it is not healthy, for a person; "" when it is."""
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
        """First a Reset, then each change in order; a Reset again when the place in them was lost.

        Ends when the store is closed, and raises nothing. Records that cannot be read are left out, and
        logged.
        """
        ...

    async def put(self, record: WorkerRecord, *, ttl: float | None = None) -> None:
        """Write ``record`` in place of the one of its URL.

        With ``lease`` the record goes by itself so many seconds after this store was closed or its process
        died; until then the store keeps it. Without, it keeps the lease that the one before has, whoever
        renews that; with none, it stays. Raises StoreUnavailable within a second, and ReadOnlyStore.
        """
        ...

    async def delete(self, url: str) -> bool:
        """Take a record away; False if there was none. Raises as ``put`` does."""
        ...

    async def write_cordons(self, updates: Updates) -> None:
        """Write cordons (gateway.fleet.cordons.cordons). Of two writes of one reason the later one counts, in
        whatever order they arrive; for that, a removed reason is remembered for a while. Cordons outlive
        records and leases. Raises StoreUnavailable within a second."""
        ...

    async def close(self) -> None:
        """End every ``watch``, and the renewal of leases."""
        ...
