"""Send entries of a last-writer-wins map to all other replicas: to the peers, and to the store.

Owns: sending each write, and writing to the store until it has them. Must never enter: which of two entries
counts, a store's kind, the channel between processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice

from gateway.loop.tasks import Tasks
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.last_writer_wins.map import Key, LastWriterWinsMap, Updates

log = logging.getLogger(__name__)

#: Seconds until a write that failed is repeated.
RETRY_INTERVAL = 1.0
#: Entries in one write, which has to be done within a second.
BATCH = 1024


async def no_peers(updates: Updates) -> None:
    """Send updates to no one: this process is the only one of its gateway."""


class Replication:
    """The replication of ``entries``. ``send_to_peers`` returns once the other processes of the gateway have
    merged the updates, within a second; ``is_stored`` says which keys the store gets."""

    def __init__(
        self,
        entries: LastWriterWinsMap,
        store: Store,
        send_to_peers: Callable[[Updates], Awaitable[None]],
        is_stored: Callable[[Key], bool],
    ) -> None:
        self._entries = entries
        self._store = store
        self._send_to_peers = send_to_peers
        self._is_stored = is_stored
        self._tasks = Tasks()
        #: Keys that the store does not have yet, in the order in which they are written.
        self._unwritten: dict[Key, None] = {}
        self._store_failing = False
        self._write_lock = asyncio.Lock()

    async def send(self, updates: Updates) -> None:
        """Return when all peers have merged ``updates`` and the store has them, for other gateways to learn
        of. Return after a second at the latest, even if one of them does not answer; the store is written to
        until it has them."""
        self._note_unwritten(updates)
        await asyncio.gather(self._send_to_peers(updates), self._write_store())

    def send_in_background(self, updates: Updates) -> None:
        self._tasks.spawn(self.send(updates), "sending cordons")

    def store_in_background(self, updates: Updates) -> None:
        """Write what a peer sent: any of the processes may be the one that survives."""
        self._note_unwritten(updates)
        self._tasks.spawn(self._write_store(), "writing cordons")

    async def close(self) -> None:
        """Write nothing any more."""
        await self._tasks.stop()

    def _note_unwritten(self, updates: Updates) -> None:
        if self._store.keeps_cordons:
            self._unwritten |= dict.fromkeys(filter(self._is_stored, updates))

    async def _write_store(self) -> None:
        """Write all that is unwritten, together with what concurrent callers wait for. While writes fail,
        only the task that repeats them waits for the store."""
        async with self._write_lock:
            try:
                while self._unwritten and not self._store_failing:
                    await self._write_batch()
            except StoreUnavailable as error:
                log.warning("other gateways do not know yet which workers are cordoned: %s", error)
                self._store_failing = True
                self._tasks.keep_running(self._repeat_writes, "writing cordons again")

    async def _repeat_writes(self) -> None:
        while self._unwritten:
            await asyncio.sleep(RETRY_INTERVAL)
            with suppress(StoreUnavailable):
                while self._unwritten:
                    await self._write_batch()
        self._store_failing = False

    async def _write_batch(self) -> None:
        known = {key: entry for key in self._unwritten if (entry := self._entries.get(key)) is not None}
        self._unwritten = dict.fromkeys(known)  # without those whose tombstone was dropped
        batch = dict(islice(known.items(), BATCH))
        await self._store.write_cordons(batch)
        for key, entry in batch.items():
            if self._entries.get(key) == entry:
                self._unwritten.pop(key, None)
