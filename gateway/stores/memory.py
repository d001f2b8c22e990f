"""The store in memory: the default, for a gateway of one process.

Owns: the records and the queues of its watches. Must never enter: I/O. The records end with the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from gateway.stores.base import Change, Gone, Put, Reset
from gateway.stores.last_writer_wins.map import Updates
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import spellings_of

#: Changes that are queued for one watch; above that they are replaced by a Reset.
BACKLOG = 1024

_Changes = asyncio.Queue[Change | None]


class MemoryStore:
    """A store that is always available."""

    healthy = True
    reason = ""
    writable = True
    keeps_cordons = False

    def __init__(self) -> None:
        self._records: dict[str, WorkerRecord] = {}
        self._watchers: set[_Changes] = set()
        self._closed = False

    async def watch(self) -> AsyncGenerator[Change, None]:
        """See Store. None in a queue ends the watch."""
        changes: _Changes = asyncio.Queue()
        changes.put_nowait(None if self._closed else self._reset())
        self._watchers.add(changes)
        try:
            while (change := await changes.get()) is not None:
                yield change
        finally:
            self._watchers.remove(changes)

    async def put(self, record: WorkerRecord, *, ttl: float | None = None) -> None:
        """See Store. Records do not expire before the store is gone."""
        if self._records.get(record.url) != record:
            self._records[record.url] = record
            self._notify(Put(record))

    async def delete(self, url: str) -> bool:
        """See Store."""
        found = spellings_of(url, self._records)
        for each in found:
            del self._records[each]
            self._notify(Gone(each))
        return bool(found)

    async def write_cordons(self, updates: Updates) -> None:
        """See Store: the cordons of this process are in its memory already."""

    async def close(self) -> None:
        """See Store."""
        self._closed = True
        for changes in self._watchers:
            changes.put_nowait(None)

    def _notify(self, change: Change) -> None:
        for changes in self._watchers:
            if changes.qsize() >= BACKLOG:
                while not changes.empty():
                    changes.get_nowait()
                changes.put_nowait(self._reset())
            else:
                changes.put_nowait(change)

    def _reset(self) -> Reset:
        return Reset(dict(self._records))
