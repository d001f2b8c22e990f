"""A reader of a store for tests, which checks the rules of ``watch``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from gateway.loop.tasks import Tasks
from gateway.stores.base import Change, CordonsChanged, Gone, Put, Reset, Store
from gateway.stores.last_writer_wins.map import Key, Versioned
from gateway.stores.record import WorkerRecord
from tests.support.gateway import until

#: Seconds; enough on a machine that is busy with other tests.
PATIENCE = 20.0


class Watched:
    """The changes of ``store`` so far, and the state that follows from them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.changes: list[Change] = []
        self.records: dict[str, WorkerRecord] = {}
        self.entries: dict[Key, Versioned] = {}
        self.ended = False
        self._changed = asyncio.Event()

    @property
    def cordons(self) -> set[Key]:
        """The keys that are present."""
        return {key for key, entry in self.entries.items() if entry.present}

    @property
    def urls(self) -> set[str]:
        return set(self.records)

    @property
    def resets(self) -> int:
        return sum(isinstance(change, Reset) for change in self.changes)

    async def run(self) -> None:
        async with aclosing(self.store.watch()) as changes:
            async for change in changes:
                self._saw(change)
                self._changed.set()
        self.ended = True
        self._changed.set()

    def _saw(self, change: Change) -> None:
        assert self.changes or isinstance(change, Reset), "a Reset comes first"
        self.changes.append(change)
        match change:
            case Reset(records, cordons):
                self.records, self.entries = dict(records), dict(cordons)
            case Put(record):
                assert self.records.get(record.url) != record, "not a change"
                self.records[record.url] = record
            case CordonsChanged(cordons):
                assert cordons and not cordons.items() & self.entries.items(), "not a change"
                self.entries.update(cordons)
            case Gone(url):
                del self.records[url]

    async def until(self, happened: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until ``happened``, which is checked after each change and at the end."""
        try:
            async with asyncio.timeout(seconds):
                while not happened():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"it did not happen; the changes were {self.changes}") from None

    async def knows(self, *urls: str) -> None:
        """Wait until exactly these are the workers."""
        await self.until(lambda: bool(self.changes) and self.urls == set(urls))


@asynccontextmanager
async def watching(store: Store, *, first: bool = False) -> AsyncIterator[Watched]:
    """Read ``store`` during the block; with ``first`` the block begins after the first change."""
    watched, tasks = Watched(store), Tasks()
    reading = tasks.spawn(watched.run(), "reader")
    try:
        if first:
            await watched.until(lambda: bool(watched.changes))
        yield watched
        if reading.done():
            reading.result()  # a reader that failed fails its test
    finally:
        await tasks.stop()


async def turns(store: Store, *, healthy: bool) -> None:
    """Wait until ``store.healthy`` is ``healthy``."""
    await until(lambda: store.healthy is healthy)
