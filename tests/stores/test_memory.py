"""The store of a gateway alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.stores.base import Change, Gone, Put, Reset
from gateway.stores.memory import BACKLOG, MemoryStore
from gateway.stores.record import WorkerRecord
from tests.stores.contract import Open, StoreContract

A, B = WorkerRecord("http://a:1"), WorkerRecord("http://b:1", held=True)


class TestContract(StoreContract):
    """What every store promises."""

    @pytest.fixture
    def open_store(self) -> Open:
        return MemoryStore


async def taken(changes: AsyncIterator[Change], count: int) -> list[Change]:
    async with asyncio.timeout(5):
        return [await anext(changes) for _ in range(count)]


async def test_watch_begins_with_all_and_goes_on_with_each_change() -> None:
    """In order, to each watcher; what changes nothing is told to nobody."""
    store = MemoryStore()
    await store.put(A)
    one, other = store.watch(), store.watch()
    for changes in (one, other):
        assert await taken(changes, 1) == [Reset({A.url: A})]
    await store.put(B)
    await store.put(B)
    changed = WorkerRecord(A.url, model="m")
    await store.put(changed)
    assert await store.delete(B.url)
    assert not await store.delete(B.url)
    await store.put(B)
    for changes in (one, other):
        assert await taken(changes, 4) == [Put(B), Put(changed), Gone(B.url), Put(B)]
    await store.close()


async def test_watcher_that_falls_behind_is_told_all_anew() -> None:
    """What waits for it is bounded, and what it ends up with is right."""
    store = MemoryStore()
    changes = store.watch()
    await taken(changes, 1)
    for _ in range(BACKLOG):
        await store.put(A)
        await store.delete(A.url)
    await store.put(B)
    known: dict[str, WorkerRecord] = {}
    resets = 0
    while known != {B.url: B}:
        (change,) = await taken(changes, 1)
        match change:
            case Reset(records):
                known, resets = dict(records), resets + 1
            case Put(record):
                known[record.url] = record
            case Gone(url):
                del known[url]
    assert resets == 1
    await store.close()


async def test_close_ends_every_watch() -> None:
    """Those that wait, and those that begin later."""
    store = MemoryStore()
    changes = store.watch()
    await taken(changes, 1)
    await store.close()
    async with asyncio.timeout(5):
        assert [change async for change in changes] == []
        assert [change async for change in store.watch()] == []


async def test_store_in_memory_is_healthy_and_writable() -> None:
    store = MemoryStore()
    assert (store.healthy, store.reason, store.writable) == (True, "", True)
