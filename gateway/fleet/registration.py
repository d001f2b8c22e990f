"""What the workers API does: to the store, and at once to this gateway's own fleet.

Owns: the order of the two, and which URLs may be registered. Must never enter: HTTP, a store's kind.

Whatever a worker does, none of it waits for one. What the store then tells changes nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.fleet.cordons.cordons import BY_OWNER, DISMISSED, weights_allowed
from gateway.fleet.cordons.replication import CordonReplication
from gateway.fleet.members import Members
from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource
from gateway.fleet.worker import Worker
from gateway.stores.base import Store
from gateway.stores.record import WorkerRecord, is_text
from gateway.upstream.url_patterns import UrlPattern, permitted


class UrlNotAllowed(Exception):
    """The URL matches none of the patterns that registration is limited to."""


class Registration:
    """``allowed`` limits what may be registered; () allows any URL. ``sharing`` tells what the store has no
    record for, of workers that were given at the start or that others write.

    All but ``find`` raise StoreUnavailable; ``add`` and ``remove`` raise ReadOnlyStore.
    """

    def __init__(
        self,
        store: Store,
        members: Members,
        fleet: Fleet,
        allowed: Sequence[UrlPattern],
        replication: CordonReplication,
    ) -> None:
        self._store = store
        self._members = members
        self._fleet = fleet
        self._allowed = allowed
        self._replication = replication

    @property
    def store(self) -> Store:
        """For those who report on it."""
        return self._store

    def find(self, key: str) -> Worker | None:
        """The member with this id or URL, a slash at its end or not."""
        other = key.removesuffix("/") if key.endswith("/") else f"{key}/"
        return self._fleet.find(key) or self._fleet.find(other)

    async def add(self, record: WorkerRecord) -> Worker:
        """Register a worker, or change what is known of it. Raises UrlNotAllowed."""
        if not permitted(record.url, self._allowed):
            raise UrlNotAllowed(f"{record.url!r} is not among the URLs that may be registered here")
        if DISMISSED in self._replication.cordons.of(record.url):
            await self._replication.write({record.url: {DISMISSED: False}})
        await self._store.put(record)
        return self._members.admit(record)

    async def remove(self, worker: Worker) -> None:
        """Let it finish what runs on it, and forget it."""
        await self._store.delete(worker.url)
        pinned = self._members.is_pinned(worker.url)
        self._members.dismiss(worker.url)
        if pinned:
            await self._replication.write({worker.url: {DISMISSED: True}})

    async def forget(self, url: str) -> bool:
        """Take a record away whose worker is no member here, as it was written elsewhere a moment ago.

        False if the store has none. One that others write is left alone.
        """
        if not (self._store.writable and await self._store.delete(url)):
            return False
        self._members.dismiss(url)
        return True

    async def cordon(self, worker: Worker) -> None:
        """Give it no request until it is opened."""
        if await self._recorded(worker, held=True):
            self._fleet.cordon(worker, CordonSource.OWNER)
        else:
            await self._replication.write({worker.url: {BY_OWNER: True}})

    async def uncordon(self, worker: Worker) -> None:
        """Lift every hold on it."""
        await self._recorded(worker, held=False)
        edit = dict.fromkeys(self._replication.cordons.of(worker.url), False)
        version = worker.weight_version
        if CordonSource.WEIGHTS in worker.cordons and (version is None or is_text(version)):
            edit[weights_allowed(version)] = True
        self._fleet.uncordon(worker)
        if edit:
            await self._replication.write({worker.url: edit})

    async def _recorded(self, worker: Worker, *, held: bool) -> bool:
        """Keep it in the store, where that can be written to and has the worker; whether it is so."""
        record = replace(worker.record, held=held)
        kept = self._store.writable and not self._members.is_pinned(worker.url)
        if kept and record != worker.record:
            await self._store.put(record)
        if kept or not held:
            worker.record = record
        return kept
