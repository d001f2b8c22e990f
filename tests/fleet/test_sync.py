"""The fleet following a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

import pytest

from gateway.fleet.allow import UrlPattern
from gateway.fleet.marks import Marks
from gateway.fleet.members import Members
from gateway.fleet.record import WorkerRecord
from gateway.fleet.sync import follow
from gateway.stores.base import Change, Marked, Reset
from gateway.stores.memory import MemoryStore
from tests.support import until

A, B = WorkerRecord("http://a:1"), WorkerRecord("http://b:1")


class Noted:
    """Members and their marks, which note what they are told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def tell_all(self, marks: Mapping[str, frozenset[str]]) -> None:
        if marks:
            self.told.append(dict(marks))

    def tell(self, url: str, words: frozenset[str]) -> None:
        self.told.append((url, words))

    def keep_only(self, records: Iterable[WorkerRecord]) -> None:
        self.told.append([record.url for record in records])

    def refresh(self, record: WorkerRecord) -> None:
        self.told.append(record.url)

    def gone(self, url: str) -> None:
        self.told.append(f"-{url}")


@pytest.fixture
def members() -> Iterator[Any]:
    assert all(hasattr(Members, name) for name in ("keep_only", "refresh", "gone"))
    assert all(hasattr(Marks, name) for name in ("tell", "tell_all"))
    yield Noted()


async def test_every_change_is_applied_in_order_until_the_store_is_closed(members: Any) -> None:
    store = MemoryStore()
    await store.put(A)
    following = asyncio.ensure_future(follow(store, members, members))
    await until(lambda: len(members.told) == 1)
    await store.put(B)
    await store.delete(A.url)
    await until(lambda: len(members.told) == 3)
    await store.close()
    await asyncio.wait_for(following, 5)
    assert members.told == [[A.url], B.url, f"-{A.url}"]


async def test_record_that_may_be_no_worker_is_passed_over_and_told_of(
    members: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Whenever it comes: others than this gateway write to the store."""
    store = MemoryStore()
    await store.put(A)
    await store.put(WorkerRecord("http://evil:1"))
    allowed = [UrlPattern.parse("a"), UrlPattern.parse("b")]
    following = asyncio.ensure_future(follow(store, members, members, allowed))
    await until(lambda: len(members.told) == 1)
    await store.put(WorkerRecord("http://worse:1"))
    await store.put(B)
    await until(lambda: len(members.told) == 2)
    await store.close()
    await asyncio.wait_for(following, 5)
    assert members.told == [[A.url], B.url]
    assert "http://evil:1" in caplog.text and "http://worse:1" in caplog.text


async def test_marks_are_applied_before_the_workers_they_are_about(members: Any) -> None:
    """So that one which is paused joins as such."""

    class Marking(MemoryStore):
        async def watch(self) -> AsyncIterator[Change]:
            yield Reset({A.url: A}, {A.url: frozenset({"held"})})
            yield Marked(A.url, frozenset())

    await follow(Marking(), members, members)
    assert members.told == [{A.url: frozenset({"held"})}, [A.url], (A.url, frozenset())]
