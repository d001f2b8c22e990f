"""The watches of one store."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from gateway.stores.base import Change, Gone
from gateway.stores.feeds import BACKLOG, Emit, Feeds


def no_restart(reason: str) -> None:
    raise AssertionError(reason)


class Endless:
    """A feed that emits changes without end."""

    def __init__(self) -> None:
        self.emitted = 0
        self.ended = asyncio.Event()

    async def feed(self, emit: Emit) -> None:
        try:
            while True:
                await emit(Gone(f"http://w:{self.emitted}"))
                self.emitted += 1
        finally:
            self.ended.set()


async def test_slow_reader_stops_its_feed_and_misses_nothing() -> None:
    """When it stops reading, the feed ends; when the watches are closed, it gets nothing that is queued."""
    endless, feeds, received = Endless(), Feeds(), list[Change]()
    async with asyncio.timeout(10), aclosing(feeds.watch(endless.feed, "f", no_restart)) as changes:
        assert await anext(changes) == Gone("http://w:0")
        for _ in range(10):
            await asyncio.sleep(0)
        assert endless.emitted <= BACKLOG + 2
        for number in range(1, 2 * BACKLOG):
            assert await anext(changes) == Gone(f"http://w:{number}")
    assert endless.ended.is_set()
    endless.ended.clear()
    async with asyncio.timeout(10):
        async for change in feeds.watch(endless.feed, "f", no_restart):
            received.append(change)
            if len(received) == 1:
                await feeds.close()
    assert endless.ended.is_set()
    assert len(received) <= BACKLOG


@pytest.mark.virtual_time
async def test_feed_that_fails_is_restarted_and_reported() -> None:
    reasons: list[str] = []

    async def feed(emit: Emit) -> None:
        await emit(Gone(f"http://w:{len(reasons)}"))
        if len(reasons) < 2:
            raise RuntimeError("a bug")

    feeds = Feeds()
    changes = [change async for change in feeds.watch(feed, "the watch", reasons.append)]
    assert changes == [Gone(f"http://w:{number}") for number in range(3)]
    assert reasons == ["the watch failed: RuntimeError: a bug"] * 2
    await feeds.close()
