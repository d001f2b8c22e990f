"""The fleet following a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

import pytest

from gateway.fleet.cordons import Cordons
from gateway.fleet.members import FleetMembership
from gateway.fleet.sync import StoreFollower
from gateway.stores.base import Change, CordonsChanged, Gone, Put, Reset
from gateway.stores.last_writer_wins.map import Updates, Versioned
from gateway.stores.memory import MemoryStore
from gateway.stores.record import WorkerRecord
from gateway.upstream.url_patterns import UrlPattern
from tests.support.gateway import until

A, B = WorkerRecord("http://a:1"), WorkerRecord("http://b:1")


class NotingMembers:
    """A double of members and cordons, which notes what is applied."""

    def __init__(self) -> None:
        self.applied: list[Any] = []

    def merge_store(self, cordons: Updates) -> None:
        if cordons:
            self.applied.append(dict(cordons))

    def merge_store_change(self, cordons: Updates) -> None:
        self.applied.append(cordons)

    def keep_only(self, records: Iterable[WorkerRecord]) -> None:
        self.applied.append([record.url for record in records])

    def refresh(self, record: WorkerRecord) -> None:
        self.applied.append(record.url)

    def on_record_removed(self, url: str) -> None:
        self.applied.append(f"-{url}")


@pytest.fixture
def members() -> Iterator[Any]:
    assert all(hasattr(FleetMembership, name) for name in ("keep_only", "refresh", "on_record_removed"))
    assert all(hasattr(Cordons, name) for name in ("merge_store", "merge_store_change"))
    yield NotingMembers()


async def test_every_change_is_applied_in_order_but_for_records_that_are_not_allowed(
    members: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Those are left out and logged whenever they come: others than this gateway write to the store."""
    store = MemoryStore()
    for url in (A.url, "http://evil:1"):
        await store.put(WorkerRecord(url))
    allowed = [UrlPattern.parse("a"), UrlPattern.parse("b")]
    following = asyncio.ensure_future(StoreFollower(store).run(members, members, allowed))
    await until(lambda: len(members.applied) == 1)
    for url in ("http://worse:1", B.url):
        await store.put(WorkerRecord(url))
    await store.delete(A.url)
    await until(lambda: len(members.applied) == 3)
    await store.close()
    await asyncio.wait_for(following, 5)
    assert members.applied == [[A.url], B.url, f"-{A.url}"]
    assert "http://evil:1" in caplog.text and "http://worse:1" in caplog.text


async def test_cordons_are_applied_before_the_workers_they_are_about(members: Any) -> None:
    """So a paused worker joins as cordoned."""

    class CordoningStore(MemoryStore):
        async def watch(self) -> AsyncGenerator[Change, None]:
            yield Reset({A.url: A}, there)
            yield CordonsChanged(away)

    key = (A.url, "held")
    there, away = {key: Versioned(7, "a", True)}, {key: Versioned(8, "a", False)}
    await StoreFollower(CordoningStore()).run(members, members)
    assert members.applied == [there, [A.url], away]


async def test_fleet_is_unhealthy_from_a_failed_change_until_all_are_applied_again(members: Any) -> None:

    def fail(record: WorkerRecord) -> None:
        raise RuntimeError("a bug")

    store, apply = MemoryStore(), members.refresh
    following = StoreFollower(store)
    members.refresh = fail
    running = asyncio.ensure_future(following.run(members, members))
    await until(lambda: bool(members.applied))
    assert following.healthy
    await store.put(A)
    with pytest.raises(RuntimeError):
        await asyncio.wait_for(running, 5)
    assert not following.healthy
    members.refresh = apply
    running = asyncio.ensure_future(following.run(members, members))
    await until(lambda: following.healthy)
    assert members.applied == [[], [A.url]]
    await store.close()
    await asyncio.wait_for(running, 5)


async def test_records_that_spell_one_url_differently_are_one_worker(members: Any) -> None:
    """The first one counts until it is gone, and the worker leaves with the last one."""
    first, second = WorkerRecord("http://a:1/"), WorkerRecord("HTTP://A:1")

    class OlderStore(MemoryStore):
        async def watch(self) -> AsyncGenerator[Change, None]:
            yield Reset({first.url: first, second.url: second, B.url: B})
            for change in (Put(second), Gone(first.url), Put(first), Gone(second.url), Gone(first.url)):
                yield change

    await StoreFollower(OlderStore()).run(members, members)
    assert members.applied == [
        [first.url, B.url], first.url, second.url, second.url, first.url, f"-{first.url}"
    ]  # fmt: skip
