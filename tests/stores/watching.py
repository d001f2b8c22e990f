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
    """The changes so far, and the state that follows from them. ``records`` None: no change yet."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.records: dict[str, WorkerRecord] | None = None
        self.entries: dict[Key, Versioned] = {}
        self.ended = False
        self._changed = asyncio.Event()

    @property
    def cordons(self) -> set[Key]:
        """The keys that are present."""
        return {key for key, entry in self.entries.items() if entry.present}

    @property
    def urls(self) -> set[str]:
        return set(self.records or ())

    def saw(self, change: Change) -> None:
        assert (self.records is None) <= isinstance(change, Reset), "a Reset comes first"
        self.changes.append(change)
        match change:
            case Reset(records, cordons):
                self.records = dict(records)
                self.entries = dict(cordons)
            case Put(record):
                assert self.records is not None and self.records.get(record.url) != record, "not a change"
                self.records[record.url] = record
            case CordonsChanged(cordons):
                assert cordons and not cordons.items() & self.entries.items(), "not a change"
                self.entries.update(cordons)
            case Gone(url):
                assert self.records is not None
                del self.records[url]
        self._changed.set()

    def end(self) -> None:
        self.ended = True
        self._changed.set()

    async def until(self, happened: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until ``happened``, which is checked after each change and at the end."""
        try:
            async with asyncio.timeout(seconds):
                while not happened():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"it did not happen; the changes were {self.changes}") from None


@asynccontextmanager
async def watching(store: Store) -> AsyncIterator[Watched]:
    """Read ``store`` during the block."""
    watched, tasks = Watched(), Tasks()

    async def read() -> None:
        async with aclosing(store.watch()) as changes:
            async for change in changes:
                watched.saw(change)
        watched.end()

    reading = tasks.spawn(read(), "reader")
    try:
        yield watched
        if reading.done():
            reading.result()  # a reader that failed fails its test
    finally:
        await tasks.stop()


async def turns(store: Store, *, healthy: bool) -> None:
    """Wait until ``store.healthy`` is ``healthy``."""
    await until(lambda: store.healthy is healthy)
