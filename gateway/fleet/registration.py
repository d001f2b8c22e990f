"""The changes that the workers API makes: in the store, and at once in this gateway's own fleet.

Owns: the order of the two, and which URLs may be registered. Must never enter: HTTP, a store's kind.

No change waits for a worker. When the store reports the change later, it is known already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.fleet.cordons import BY_OWNER, DISMISSED, Cordons, weights_allowed
from gateway.fleet.members import FleetMembership
from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource
from gateway.fleet.worker import Worker
from gateway.stores.base import Store
from gateway.stores.record import REGULAR, WorkerRecord, is_text
from gateway.upstream.url_patterns import UrlPattern, permitted


class UrlNotAllowed(Exception):
    """The URL matches no pattern of --allow-worker-url."""


class RoleNotServed(Exception):
    """Workers of this role get no requests here, so that one would never be ready."""


def check_role(record: WorkerRecord) -> None:
    """Raise RoleNotServed if requests cannot be sent to such a worker."""
    if record.worker_type != REGULAR:
        raise RoleNotServed(
            f"worker_type {record.worker_type} cannot be served yet: each request goes to one worker, which"
            f" runs its prompt and generates; register it where the pair is formed, or as {REGULAR} if it"
            " serves whole requests"
        )


class Registration:
    """The changes of one gateway's workers. ``allowed`` limits which URLs may be registered; () allows any.

    If this gateway cannot write the worker's record, its cordon goes through ``cordons``: the worker was
    configured by --worker, or others write the store.

    All but ``find`` raise StoreUnavailable; ``add`` and ``remove`` raise ReadOnlyStore.
    """

    def __init__(
        self,
        store: Store,
        members: FleetMembership,
        fleet: Fleet,
        allowed: Sequence[UrlPattern],
        cordons: Cordons,
    ) -> None:
        self._store = store
        self._members = members
        self._fleet = fleet
        self._allowed = allowed
        self._cordons = cordons

    @property
    def store(self) -> Store:
        """The store, for reports on it."""
        return self._store

    def find(self, key: str) -> Worker | None:
        """Return the member with this id or URL, however that is spelled."""
        return self._fleet.find(key)

    async def add(self, record: WorkerRecord) -> Worker:
        """Register a worker, or replace its record, which keeps the spelling of its URL.

        Raises UrlNotAllowed, which depends on the spelling that is given now, and RoleNotServed.
        """
        if not permitted(record.url, self._allowed):
            raise UrlNotAllowed(f"{record.url!r} is not among the URLs that may be registered here")
        check_role(record)
        if DISMISSED in self._cordons.of(record.url):
            await self._cordons.write({(record.url, DISMISSED): False})
        if (known := self._fleet.at(record.url)) is not None:
            record = replace(record, url=known.record.url)
        await self._store.put(record)
        return self._members.admit(record)

    async def remove(self, worker: Worker) -> None:
        """Drain a worker and delete its record."""
        await self._store.delete(worker.url)
        pinned = self._members.is_pinned(worker.url)
        self._members.dismiss(worker.url)
        if pinned:
            await self._cordons.write({(worker.url, DISMISSED): True})

    async def forget(self, url: str) -> bool:
        """Delete the record of a worker that is not a member here: another gateway wrote it a moment ago.

        Return False if there is no such record, or others write the store.
        """
        if not (self._store.writable and await self._store.delete(url)):
            return False
        self._members.dismiss(url)
        return True

    async def cordon(self, worker: Worker) -> None:
        """Give a worker no new requests until it is uncordoned."""
        if await self._write_record(worker, cordoned=True):
            self._fleet.cordon(worker, CordonSource.OWNER)
        else:
            await self._cordons.write({(worker.url, BY_OWNER): True})

    async def uncordon(self, worker: Worker) -> None:
        """End every cordon of a worker."""
        await self._write_record(worker, cordoned=False)
        changes = {(worker.url, reason): False for reason in self._cordons.of(worker.url)}
        version = worker.weight_version
        if CordonSource.WEIGHTS in worker.cordons and (version is None or is_text(version)):
            changes[worker.url, weights_allowed(version)] = True
        self._fleet.uncordon(worker)
        if changes:
            await self._cordons.write(changes)

    async def _write_record(self, worker: Worker, *, cordoned: bool) -> bool:
        """Write the owner's cordon into the record; return False if the store cannot have it."""
        record = replace(worker.record, cordoned=cordoned)
        writable = self._store.writable and not self._members.is_pinned(worker.url)
        if writable and record != worker.record:
            await self._store.put(record)
        if writable or not cordoned:
            worker.record = record
        return writable
