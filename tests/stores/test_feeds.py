"""The watches of one store."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from gateway.loop import tasks
from gateway.stores.base import Change, Gone
from gateway.stores.feeds import BACKLOG, Emit, Feeds


def nobody(reason: str) -> None:
    raise AssertionError(reason)


class Endless:
    """Tells for ever, as fast as it may."""

    def __init__(self) -> None:
        self.told = 0
        self.ended = asyncio.Event()

    async def feed(self, emit: Emit) -> None:
        try:
            while True:
                await emit(Gone(f"http://w:{self.told}"))
                self.told += 1
        finally:
            self.ended.set()


async def test_reader_that_is_away_holds_its_feed_up() -> None:
    """At a number of changes that is known; and misses none of them."""
    endless, feeds = Endless(), Feeds()
    async with asyncio.timeout(10), aclosing(feeds.watch(endless.feed, "f", nobody)) as changes:
        assert await anext(changes) == Gone("http://w:0")
        for _ in range(10):
            await asyncio.sleep(0)
        assert endless.told <= BACKLOG + 2
        for number in range(1, 2 * BACKLOG):
            assert await anext(changes) == Gone(f"http://w:{number}")
    await feeds.close()


async def test_feed_ends_when_its_reader_stops() -> None:
    endless, feeds = Endless(), Feeds()
    async with asyncio.timeout(10), aclosing(feeds.watch(endless.feed, "f", nobody)) as changes:
        await anext(changes)
    assert endless.ended.is_set()
    await feeds.close()


async def test_close_ends_a_watch_whose_reader_is_behind() -> None:
    """It is told no more of what waits."""
    endless, feeds, told = Endless(), Feeds(), list[Change]()
    async with asyncio.timeout(10):
        async for change in feeds.watch(endless.feed, "f", nobody):
            told.append(change)
            if len(told) == 1:
                await feeds.close()
    assert endless.ended.is_set()
    assert len(told) <= BACKLOG


async def test_watch_ends_with_its_feed() -> None:
    async def feed(emit: Emit) -> None:
        await emit(Gone("http://w:1"))

    feeds = Feeds()
    async with asyncio.timeout(10):
        assert [change async for change in feeds.watch(feed, "f", nobody)] == [Gone("http://w:1")]
    await feeds.close()


async def test_feed_that_fails_begins_again_and_its_reader_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is meant to: it says so, and the store that it is of is not healthy meanwhile."""
    monkeypatch.setattr(tasks, "FIRST_PAUSE", 0.01)
    told: list[str] = []

    async def feed(emit: Emit) -> None:
        await emit(Gone(f"http://w:{len(told)}"))
        if len(told) < 2:
            raise RuntimeError("a bug")

    feeds = Feeds()
    async with asyncio.timeout(10):
        changes = [change async for change in feeds.watch(feed, "the watch", told.append)]
    assert changes == [Gone(f"http://w:{number}") for number in range(3)]
    assert told == ["the watch failed: RuntimeError: a bug"] * 2
    await feeds.close()
