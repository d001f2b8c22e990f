"""Replicate cordons to all who share the fleet: the other processes of this gateway, and other gateways.

Owns: sending each write to them, writes to the store that are repeated until it has them, and which events of
a worker's life remove its cordons. Must never enter: which of two entries counts, a store's kind, the channel
between processes, a dialect.

A worker is paused in kinds that are independent of each other: one whose generation is paused and whose
memory was released serves again when both are undone. A kind has parts, as memory is released and resumed in
parts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from gateway.fleet.cordons.cordons import BY_OWNER, DISMISSED, Changes, Cordons, Reasons, paused, paused_parts
from gateway.fleet.cordons.departures import Departures
from gateway.fleet.worker import NO_WEIGHTS, Worker
from gateway.loop.tasks import Tasks
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Updates, Versioned

log = logging.getLogger(__name__)

#: Seconds until a write that failed is repeated.
RETRY_INTERVAL = 1.0
#: Entries in one write, which has to be done within a second.
BATCH = 1024


async def no_peers(updates: Updates) -> None:
    """Send updates to no one: this process is the only one of its gateway."""


class CordonReplication:
    """The cordons of one process, and their replication.

    ``send_to_peers`` returns once the other processes of the gateway have merged the updates, within a
    second.
    """

    def __init__(
        self,
        cordons: Cordons,
        store: Store,
        send_to_peers: Callable[[Updates], Awaitable[None]] = no_peers,
        departures: Departures | None = None,
    ) -> None:
        self.cordons = cordons
        self._store = store
        self._send_to_peers = send_to_peers
        self._departures = departures or Departures()
        self._tasks = Tasks()
        #: Keys that the store does not have yet, in the order in which they are written.
        self._unwritten: dict[tuple[str, str], None] = {}
        self._store_failing = False
        self._write_lock = asyncio.Lock()

    async def write(self, changes: Changes) -> None:
        """Apply ``changes`` here, and return when all other processes of this gateway have applied them and
        the store has them, for other gateways to learn of. Return after a second at the latest, even if one
        of them does not answer; the store is written to until it has them."""
        await self._replicate(self.cordons.write(changes))

    def receive(self, updates: Updates) -> list[str]:
        """Merge updates of another process; return the URLs of workers that were dismissed by it.

        Each process writes them to the store, as any of them may be the one that survives.
        """
        news = self.cordons.merge(updates)
        for url in news:
            waiting = self.cordons.of(url) - {DISMISSED} and self.cordons.worker(url) is None
            if waiting and url not in self._departures:
                self._on_departure(url)
        self._note_unwritten(news)
        if self._unwritten:
            self._tasks.spawn(self._write_store(), "writing cordons")
        return [
            url
            for url, entries in news.items()
            if DISMISSED in entries and entries[DISMISSED].present and self.cordons.worker(url)
        ]

    async def close(self) -> None:
        """Write nothing any more."""
        await self._tasks.stop()

    # -- pauses

    async def pause(
        self, workers: Collection[Worker], kind: str, parts: Collection[str]
    ) -> Mapping[Worker, Reasons]:
        """Note that ``parts`` of ``kind`` are paused at ``workers``; return which of them were not before, by
        worker. Returns as ``write`` does."""
        wanted = frozenset(parts)
        added = {worker: wanted - paused_parts(self.cordons.of(worker.url), kind) for worker in workers}
        reasons = dict.fromkeys((paused(kind, part) for part in wanted), True)
        await self.write({worker.url: reasons for worker in workers})
        return added

    async def resume(self, worker: Worker, kind: str, parts: Collection[str], *, every: bool = False) -> None:
        """Note that ``parts`` of ``kind``, and with ``every`` all other parts, are not paused any more.

        It is written even for parts that are not known to be paused here: another process or gateway may have
        paused them a moment ago. Returns as ``write`` does.
        """
        resumed = frozenset(parts)
        if every:
            resumed |= paused_parts(self.cordons.of(worker.url), kind)
        if resumed:
            await self.write({worker.url: dict.fromkeys((paused(kind, part) for part in resumed), False)})

    # -- events that remove cordons

    def remove_all(self, url: str, *, keep_owner: bool = False) -> None:
        """Remove every cordon of ``url``: its worker was dismissed, or is another process from now on. With
        ``keep_owner`` the process that comes next is cordoned by its owner like the one before."""
        kept = {DISMISSED, BY_OWNER} if keep_owner else {DISMISSED}
        if reasons := self.cordons.of(url) - kept:
            updates = self.cordons.write({url: dict.fromkeys(reasons, False)})
            self._tasks.spawn(self._replicate(updates), "sending cordons")

    def on_unreachable(self, worker: Worker) -> None:
        """Remove the cordons of a process that has ended, as nothing listens at its URL.

        The next one is neither paused, nor allowed weights that are too old.
        """
        worker.allowed_weights = NO_WEIGHTS
        self.remove_all(worker.url, keep_owner=True)

    def on_record_removed(self, record: WorkerRecord) -> bool:
        """Note the departure of a worker. Return True if it has cordons, which wait for it to come back."""
        if not self.cordons.of(record.url):
            return False
        self._on_departure(record.url, record.incarnation)
        return True

    def on_worker_added(self, record: WorkerRecord) -> None:
        """Remove the cordons of ``record.url`` if another process than the departed one is there now."""
        if self._departures.is_another(record):
            self.remove_all(record.url)

    def _on_departure(self, url: str, incarnation: str = "") -> None:
        for dropped in self._departures.add(url, incarnation):
            self.remove_all(dropped)

    # -- sending

    async def _replicate(self, updates: Updates) -> None:
        self._note_unwritten(updates)
        await asyncio.gather(self._send_to_peers(updates), self._write_store())

    def _note_unwritten(self, updates: Updates) -> None:
        if self._store.keeps_cordons:
            keys = ((url, reason) for url, entries in updates.items() for reason in entries)
            self._unwritten |= dict.fromkeys(key for key in keys if key[1] != DISMISSED)

    async def _write_store(self, *, again: bool = False) -> None:
        """Write all that is unwritten, together with what concurrent callers wait for. While writes fail,
        only the task that repeats them (``again``) waits for the store."""
        async with self._write_lock:
            while self._unwritten and (again or not self._store_failing):
                entries = {key: self.cordons.entry(*key) for key in list(self._unwritten)[:BATCH]}
                updates: dict[str, dict[str, Versioned]] = {}
                for (url, reason), entry in entries.items():
                    if entry is None:  # its tombstone was dropped
                        del self._unwritten[url, reason]
                    else:
                        updates.setdefault(url, {})[reason] = entry
                try:
                    await self._store.write_cordons(updates)
                except StoreUnavailable as error:
                    if not self._store_failing:
                        log.warning("other gateways do not know yet which workers are cordoned: %s", error)
                        self._store_failing = True
                        self._tasks.keep_running(self._repeat_writes, "writing cordons again")
                    return
                self._store_failing = False
                for key, entry in entries.items():
                    if self.cordons.entry(*key) == entry:
                        self._unwritten.pop(key, None)

    async def _repeat_writes(self) -> None:
        while self._store_failing:
            await asyncio.sleep(RETRY_INTERVAL)
            await self._write_store(again=True)
