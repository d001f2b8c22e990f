"""A reader of a store, as the fleet is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from gateway.loop.tasks import Tasks
from gateway.stores.base import Change, CordonsChanged, Gone, Put, Reset, Store
from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Versioned

#: Seconds for what happens at once on a machine that is not busy with other tests.
PATIENCE = 20.0


class Watched:
    """What a reader was told, and what it makes of it. ``records`` None: nothing was told yet."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.records: dict[str, WorkerRecord] | None = None
        self.said: dict[str, dict[str, Versioned]] = {}
        self.ended = False
        self._news = asyncio.Event()

    @property
    def marks(self) -> dict[str, set[str]]:
        """Those that are there."""
        there = {
            url: {word for word, said in words.items() if said.present} for url, words in self.said.items()
        }
        return {url: words for url, words in there.items() if words}

    @property
    def urls(self) -> set[str]:
        return set(self.records or ())

    def saw(self, change: Change) -> None:
        assert (self.records is None) <= isinstance(change, Reset), "a Reset comes first"
        self.changes.append(change)
        match change:
            case Reset(records, marks):
                self.records, self.said = dict(records), {url: dict(words) for url, words in marks.items()}
            case Put(record):
                assert self.records is not None and self.records.get(record.url) != record, "no news"
                self.records[record.url] = record
            case CordonsChanged(url, marked):
                known = self.said.setdefault(url, {})
                assert marked and all(known.get(word) != said for word, said in marked.items()), "no news"
                known.update(marked)
            case Gone(url):
                assert self.records is not None
                del self.records[url]
        self._news.set()

    def end(self) -> None:
        self.ended = True
        self._news.set()

    async def until(self, happened: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until ``happened`` after some change, or the end."""
        try:
            async with asyncio.timeout(seconds):
                while not happened():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"it did not happen; told were {self.changes}") from None


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


async def eventually(happened: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for what nobody is told of."""
    async with asyncio.timeout(seconds):
        while not happened():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.02)


async def turns(store: Store, *, healthy: bool) -> None:
    """Wait until ``store`` says that it is healthy, or is not."""
    await eventually(lambda: store.healthy is healthy)
