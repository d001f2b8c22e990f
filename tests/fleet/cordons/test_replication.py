"""Cordons reach the other processes and the store, and end with the process that they are about."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from gateway.fleet.cordons import cordons as cordons_module
from gateway.fleet.cordons import replication as module
from gateway.fleet.cordons.cordons import BY_OWNER, DISMISSED, Changes, Cordons, paused, weights_allowed
from gateway.fleet.cordons.departures import MAX_WAIT_SECONDS, Departures
from gateway.fleet.cordons.replication import CordonReplication
from gateway.fleet.states import CordonSource, WorkerState
from gateway.fleet.worker import NO_WEIGHTS, Worker
from gateway.stores.base import StoreUnavailable
from gateway.stores.memory import MemoryStore
from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Updates, Versioned
from tests.fleet.support import fleet_of, presence
from tests.support.gateway import until

pytestmark = pytest.mark.virtual_time

A, B = "http://a:1", "http://b:1"
GENERATION = paused("generation", "generation")


def by_owner(*urls: str, present: bool = True) -> Changes:
    return {url: {BY_OWNER: present} for url in urls}


def from_peer(url: str, *reasons: str) -> Updates:
    return {url: dict.fromkeys(reasons, Versioned(7, "other", True))}


class KeepingStore(MemoryStore):
    """Notes what it is to keep; takes it once ``open`` is set, fails while it is ``away``."""

    keeps_cordons = True
    away = False

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Changes] = []
        self.tries = 0
        self.open = asyncio.Event()
        self.open.set()

    async def write_cordons(self, updates: Updates) -> None:
        self.tries += 1
        await self.open.wait()
        if self.away:
            raise StoreUnavailable("away")
        self.written.append(presence(updates))


class Peer:
    """Notes what is sent to the other processes, which have it once ``open`` is set."""

    def __init__(self) -> None:
        self.received: list[Changes] = []
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, updates: Updates) -> None:
        self.received.append(presence(updates))
        await self.open.wait()


def replication_of(
    *urls: str, store: MemoryStore | None = None, peer: Peer | None = None
) -> tuple[CordonReplication, Sequence[Worker]]:
    fleet = fleet_of(*urls)
    cordons = Cordons(fleet)
    return CordonReplication(cordons, store or MemoryStore(), peer or Peer()), fleet.workers


# -- to the peers and the store


async def test_write_returns_once_the_peers_and_the_store_have_it() -> None:
    store, peer = KeepingStore(), Peer()
    store.open.clear()
    peer.open.clear()
    replication, _ = replication_of(store=store, peer=peer)
    write = asyncio.ensure_future(replication.write(by_owner(A)))
    await until(lambda: bool(peer.received) and store.tries == 1)
    assert replication.cordons.of(A) == {BY_OWNER}, "here it counts at once"
    store.open.set()
    await until(lambda: bool(store.written))
    assert not write.done()
    peer.open.set()
    await write


async def test_concurrent_writes_are_stored_together() -> None:
    """A fleet that is resumed is one write or two, not one for each worker."""
    store = KeepingStore()
    store.open.clear()
    replication, _ = replication_of(store=store)
    urls = [f"http://{number}:1" for number in range(100)]
    writes = [asyncio.ensure_future(replication.write(by_owner(url))) for url in urls]
    await until(lambda: store.tries == 1)
    store.open.set()
    await asyncio.gather(*writes)
    assert len(store.written) <= 2
    assert set().union(*store.written) == set(urls)


async def test_store_that_was_away_gets_the_latest_entries(caplog: pytest.LogCaptureFixture) -> None:
    """No write waits for it meanwhile, and it is logged once."""
    store = KeepingStore()
    store.away = True
    replication, _ = replication_of(store=store)
    await replication.write(by_owner(A))
    for _ in range(50):
        await replication.write(by_owner(B))
    await replication.write(by_owner(A, present=False))
    assert store.tries == 1 and "which workers are cordoned" in caplog.text
    store.away = False
    await until(lambda: bool(store.written))
    assert store.written == [{**by_owner(A, present=False), **by_owner(B)}]
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1


async def test_entry_that_changes_while_it_is_stored_is_stored_again() -> None:
    store = KeepingStore()
    store.open.clear()
    replication, _ = replication_of(store=store)
    first = asyncio.ensure_future(replication.write(by_owner(A)))
    await until(lambda: store.tries == 1)
    second = asyncio.ensure_future(replication.write(by_owner(A, present=False)))
    await asyncio.sleep(0)
    store.open.set()
    await asyncio.gather(first, second)
    assert store.written == [by_owner(A), by_owner(A, present=False)]
    await replication.write(by_owner(B))
    assert store.written[2:] == [by_owner(B)], "what was stored is not stored again"


async def test_one_write_to_the_store_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has to be done within a second."""
    monkeypatch.setattr(module, "BATCH", 40)
    store = KeepingStore()
    replication, _ = replication_of(store=store)
    await replication.write(by_owner(*(f"http://{number}:1" for number in range(100))))
    assert [len(changes) for changes in store.written] == [40, 40, 20]


async def test_updates_of_a_peer_are_stored_once_as_well() -> None:
    """The peer may be dead by now. A dismissal is not stored."""
    store = KeepingStore()
    replication, _ = replication_of(store=store)
    for _ in range(2):
        assert replication.receive(from_peer(A, BY_OWNER, DISMISSED)) == []
        await until(lambda: store.written == [by_owner(A)])
    await asyncio.sleep(1)
    assert store.tries == 1


async def test_store_that_keeps_no_cordons_is_left_alone() -> None:
    store = KeepingStore()
    store.keeps_cordons = False
    replication, _ = replication_of(store=store)
    await replication.write(by_owner(A))
    replication.receive(from_peer(B, BY_OWNER))
    assert presence(replication.cordons.all) == by_owner(A, B)
    assert not store.tries


async def test_dropped_tombstones_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a store is away, workers come and go."""
    monkeypatch.setattr(cordons_module, "TOMBSTONES", 10)
    store = KeepingStore()
    store.away = True
    replication, _ = replication_of(store=store)
    for number in range(200):
        await replication.write(by_owner(f"http://{number}:1"))
        await replication.write(by_owner(f"http://{number}:1", present=False))
    await until(lambda: len(replication._unwritten) == 10)
    store.away = False
    await until(lambda: bool(store.written) and not replication._unwritten)


async def test_dismissal_by_a_peer_names_the_members_that_it_is_about() -> None:
    replication, _ = replication_of(A)
    assert replication.receive({**from_peer(A, DISMISSED), **from_peer(B, DISMISSED)}) == [A]
    assert replication.receive(from_peer(A, DISMISSED)) == [], "it is known by now"


# -- pauses


async def test_worker_is_cordoned_until_every_kind_and_part_is_resumed() -> None:
    pauses, [worker] = replication_of(A)
    await pauses.pause([worker], "memory", {"weights", "kv_cache"})
    await pauses.pause([worker], "generation", {"generation"})
    assert worker.reason == "paused through the gateway: generation, memory"
    await pauses.resume(worker, "memory", {"weights"})
    await pauses.resume(worker, "generation", {"generation"}, every=True)
    assert worker.state is WorkerState.CORDONED
    await pauses.resume(worker, "memory", {"kv_cache", "other"})
    assert worker.usable
    await pauses.pause([worker], "memory", {"of_its_own"})
    await pauses.resume(worker, "memory", {"weights"})
    assert worker.state is WorkerState.CORDONED
    await pauses.resume(worker, "memory", {"weights"}, every=True)
    assert worker.usable


async def test_pause_returns_what_it_added() -> None:
    """So a call which fails takes back no more than that."""
    pauses, [worker] = replication_of(A)
    assert await pauses.pause([worker], "memory", {"weights"}) == {worker: {"weights"}}
    assert await pauses.pause([worker], "memory", {"weights", "kv_cache"}) == {worker: {"kv_cache"}}


async def test_pause_that_arrives_after_a_later_resume_cordons_nothing() -> None:
    """It was written in another process or gateway a moment before the resume here."""
    (here, [worker]), (there, _) = replication_of(A), replication_of(A)
    await here.resume(worker, "memory", ())
    await there.pause([worker], "memory", {"weights"})
    await here.resume(worker, "memory", {"weights"}, every=True)
    here.receive(there.cordons.all)
    assert worker.state is WorkerState.READY and not worker.cordons


# -- what ends the cordons of a process


async def test_next_process_at_an_unreachable_url_is_cordoned_by_its_owner_alone() -> None:
    """All replicas learn of it: else some would cordon a worker that others do not."""
    store, peer = KeepingStore(), Peer()
    replication, [worker] = replication_of(A, store=store, peer=peer)
    await replication.write({A: {BY_OWNER: True, GENERATION: True, weights_allowed("1"): True}})
    assert worker.allowed_weights == "1"
    replication.on_unreachable(worker)
    assert worker.allowed_weights is NO_WEIGHTS
    assert replication.cordons.of(A) == {BY_OWNER} and list(worker.cordons) == [CordonSource.OWNER]
    await until(lambda: len(store.written) == 2)
    assert store.written[1] == peer.received[1] == {A: {GENERATION: False, weights_allowed("1"): False}}


async def test_removing_all_cordons_leaves_the_dismissal() -> None:
    replication, [worker] = replication_of(A)
    await replication.write({A: {DISMISSED: True, BY_OWNER: True}})
    assert worker.state is WorkerState.CORDONED
    replication.remove_all(A)
    assert replication.cordons.of(A) == {DISMISSED}


async def test_cordons_wait_for_a_worker_whose_record_was_removed() -> None:
    now = 0.0
    replication = CordonReplication(Cordons(fleet_of()), MemoryStore(), departures=Departures(lambda: now))
    a, b = WorkerRecord(A), WorkerRecord(B)
    await replication.write({A: {GENERATION: True}, B: {BY_OWNER: True}})
    assert replication.on_record_removed(a)
    replication.on_worker_added(a)
    assert replication.cordons.of(A) == {GENERATION}
    replication.on_record_removed(a)
    now = MAX_WAIT_SECONDS + 1
    replication.on_record_removed(b)
    assert not replication.cordons.of(A), "nobody waits for it any longer"
    now *= 3
    replication.on_worker_added(b)
    assert not replication.cordons.of(B), "it came too late"
    assert not replication.on_record_removed(a), "it has no cordons"


async def test_cordons_that_a_peer_sends_after_their_worker_departed_do_not_wait_forever() -> None:
    """The peer paused it a moment before its record was removed. A dismissal waits for no one."""
    now = 0.0
    replication = CordonReplication(Cordons(fleet_of()), MemoryStore(), departures=Departures(lambda: now))
    replication.receive({**from_peer(A, GENERATION), **from_peer(B, DISMISSED)})
    now = MAX_WAIT_SECONDS + 1
    replication.receive(from_peer("http://c:1", GENERATION))
    assert replication.cordons.of(B) == {DISMISSED}
    assert not replication.cordons.of(A)
