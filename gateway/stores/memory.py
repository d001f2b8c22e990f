"""Records in this process only: the default, for a gateway alone.

Owns: the records and their watchers' queues. Must never enter: I/O. What is in it ends with the process, and
so does every lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from gateway.stores.base import Change, Gone, Put, Reset
from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Updates

#: Changes that may wait for one watcher; past that it is told all records anew.
BACKLOG = 1024

_Changes = asyncio.Queue[Change | None]


class MemoryStore:
    """The store that cannot fail."""

    healthy = True
    reason = ""
    writable = True
    keeps_cordons = False

    def __init__(self) -> None:
        self._records: dict[str, WorkerRecord] = {}
        self._watchers: set[_Changes] = set()
        self._closed = False

    async def watch(self) -> AsyncGenerator[Change, None]:
        """See Store; None in a queue ends it."""
        changes: _Changes = asyncio.Queue()
        changes.put_nowait(None if self._closed else self._all())
        self._watchers.add(changes)
        try:
            while (change := await changes.get()) is not None:
                yield change
        finally:
            self._watchers.remove(changes)

    async def put(self, record: WorkerRecord, *, ttl: float | None = None) -> None:
        """See Store. A lease lasts as long as the store does."""
        if self._records.get(record.url) != record:
            self._records[record.url] = record
            self._tell(Put(record))

    async def delete(self, url: str) -> bool:
        """See Store."""
        if self._records.pop(url, None) is None:
            return False
        self._tell(Gone(url))
        return True

    async def write_cordons(self, updates: Updates) -> None:
        """See Store: what was said in this process is known in it."""

    async def close(self) -> None:
        """See Store."""
        self._closed = True
        for changes in self._watchers:
            changes.put_nowait(None)

    def _tell(self, change: Change) -> None:
        for changes in self._watchers:
            if changes.qsize() >= BACKLOG:
                while not changes.empty():
                    changes.get_nowait()
                changes.put_nowait(self._all())
            else:
                changes.put_nowait(change)

    def _all(self) -> Reset:
        return Reset(dict(self._records))
