"""The store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.stores.base import Change, Gone, Put, Reset
from gateway.stores.memory import BACKLOG, MemoryStore
from gateway.stores.record import WorkerRecord
from tests.stores.contract import Open, StoreContract

A, B = WorkerRecord("http://a:1"), WorkerRecord("http://b:1", cordoned=True)


class TestContract(StoreContract):
    """The contract of all stores."""

    @pytest.fixture
    def open_store(self) -> Open:
        return MemoryStore


async def taken(changes: AsyncIterator[Change], count: int) -> list[Change]:
    async with asyncio.timeout(5):
        return [await anext(changes) for _ in range(count)]


async def test_reader_that_falls_behind_gets_a_reset() -> None:
    """Its queue is bounded, and it ends with the right records."""
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
