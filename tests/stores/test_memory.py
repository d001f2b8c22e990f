"""The store in memory."""

from __future__ import annotations

import pytest

from gateway.stores.memory import BACKLOG, MemoryStore
from gateway.stores.record import WorkerRecord
from tests.stores.contract import Open, StoreContract
from tests.stores.watching import watching

A, B = WorkerRecord("http://a:1"), WorkerRecord("http://b:1", cordoned=True)


class TestContract(StoreContract):
    """The contract of all stores."""

    @pytest.fixture
    def open_store(self) -> Open:
        return MemoryStore


async def test_reader_that_falls_behind_gets_a_reset() -> None:
    """Its queue is bounded, and it ends with the right records."""
    store = MemoryStore()
    async with watching(store, first=True) as watched:
        for _ in range(BACKLOG):
            await store.put(A)
            await store.delete(A.url)
        await store.put(B)
        assert len(watched.changes) == 1, "nothing here waits"
        await watched.until(lambda: watched.records == {B.url: B})
    assert watched.resets == 2 and len(watched.changes) <= BACKLOG + 1
