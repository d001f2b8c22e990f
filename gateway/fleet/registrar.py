"""What the workers API does: to the store, and at once to this gateway's own fleet.

Owns: the order of the two, and which URLs may be registered. Must never enter: HTTP, a store's kind.

Whatever a worker does, none of it waits for one. What the store then tells changes nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.fleet.allow import UrlPattern, permitted
from gateway.fleet.members import Members
from gateway.fleet.record import WorkerRecord
from gateway.fleet.registry import Fleet
from gateway.fleet.states import Hold
from gateway.fleet.worker import Worker
from gateway.stores.base import Store


class UrlNotAllowed(Exception):
    """The URL matches none of the patterns that registration is limited to."""


class Registrar:
    """``allowed`` limits what may be registered; () allows any URL.

    All but ``find`` raise StoreUnavailable; ``add`` and ``remove`` raise ReadOnlyStore.
    """

    def __init__(self, store: Store, members: Members, fleet: Fleet, allowed: Sequence[UrlPattern]) -> None:
        self._store = store
        self._members = members
        self._fleet = fleet
        self._allowed = allowed

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
        await self._store.put(record)
        return self._members.admit(record)

    async def remove(self, worker: Worker) -> None:
        """Let it finish what runs on it, and forget it."""
        await self._store.delete(worker.url)
        self._members.dismiss(worker.url)

    async def forget(self, url: str) -> bool:
        """Take a record away whose worker is no member here, as it was written elsewhere a moment ago.

        False if the store has none. One that others write is left alone.
        """
        return self._store.writable and await self._store.delete(url)

    async def hold(self, worker: Worker) -> None:
        """Give it no request until it is opened."""
        await self._mark(worker, held=True)
        self._fleet.hold(worker, Hold.OWNER, "held until it is opened")

    async def open(self, worker: Worker) -> None:
        """Lift every hold on it."""
        await self._mark(worker, held=False)
        self._fleet.open(worker)

    async def _mark(self, worker: Worker, *, held: bool) -> None:
        """Keep it in the store, for the other gateways and the next start, where the store can be written to
        and has it."""
        if worker.record.held is held:
            return
        record = replace(worker.record, held=held)
        if self._store.writable and not self._members.is_pinned(worker.url):
            await self._store.put(record)
        worker.record = record
