"""What cordons mean for the workers of a fleet, and how long they last."""

from __future__ import annotations

import asyncio

import pytest

from gateway.cards.values import CardValues
from gateway.fleet import cordons as module
from gateway.fleet.cordons import (
    BY_OWNER,
    DISMISSED,
    MAX_WAIT_SECONDS,
    Cordons,
    paused,
    weights_allowed,
)
from gateway.fleet.states import CordonSource, WorkerState
from gateway.fleet.worker import Worker
from gateway.fleet.worker_cordons import NO_WEIGHTS
from gateway.formats.worker_contract import WorkerInfo
from gateway.stores.last_writer_wins.map import Changes, Updates, Versioned, undated
from gateway.stores.memory import MemoryStore
from gateway.stores.record import INCARNATION, WorkerRecord
from gateway.upstream.address import Address
from tests.fleet.support import fleet_of, presence
from tests.support.gateway import until

pytestmark = pytest.mark.virtual_time

URL, OTHER = "http://w:1", "http://other:1"
PAUSE, GENERATION = paused("memory", "kv_cache"), paused("generation", "generation")


def cordons_of(record: WorkerRecord | None = None, least: str | None = None) -> tuple[Cordons, Worker]:
    fleet = fleet_of(URL, record=record, min_weight_version=least)
    return Cordons(fleet, MemoryStore()), fleet.workers[0]


def present(url: str, *reasons: str) -> Updates:
    return {(url, reason): Versioned(7, "a", True) for reason in reasons}


def removed(url: str, reason: str) -> Updates:
    return {(url, reason): Versioned(8, "b", False)}


# -- what they mean


async def test_entries_of_a_store_cordon_and_uncordon() -> None:
    cordons, worker = cordons_of()
    cordons.merge_store({**present(URL, BY_OWNER, PAUSE), **present(OTHER, BY_OWNER)})
    assert cordons.loaded.is_set()
    assert set(worker.cordons) == {CordonSource.OWNER, CordonSource.PAUSED}
    cordons.merge_store_change(removed(URL, PAUSE))
    assert set(worker.cordons) == {CordonSource.OWNER}
    cordons.merge_store_change(removed(URL, BY_OWNER))
    assert worker.usable and cordons.of(OTHER) == {BY_OWNER}
    cordons.merge_store_change({(URL, PAUSE): undated(present=True)})
    assert not worker.usable


async def test_one_change_from_one_pause_to_another_never_uncordons() -> None:
    """A file that is polled shows both at once."""
    cordons, worker = cordons_of()
    cordons.merge_store(present(URL, PAUSE))
    with cordons._fleet.follow() as changes:
        cordons.merge_store_change({**removed(URL, PAUSE), **present(URL, GENERATION)})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(changes.get(), 1)
    assert worker.reason == "paused through the gateway: generation"


async def test_worker_that_joins_is_cordoned_by_entries_that_are_older_than_it() -> None:
    cordons, worker = cordons_of()
    cordons.merge_store_change(present("http://late:1", PAUSE))
    late = Worker(Address.parse("http://late:1"))
    for each in (late, worker):
        cordons.apply_to(each)
    assert CordonSource.PAUSED in late.cordons and not worker.cordons


async def test_write_after_a_restart_is_later_than_what_the_store_kept_from_before() -> None:
    """So a resume that was written while the store was away counts."""
    (before, _), (after, worker) = cordons_of(), cordons_of()
    await before.write({(URL, PAUSE): True})
    await after.write({(URL, PAUSE): False})
    after.merge_store(before.entries)
    assert worker.usable


async def test_removed_reason_does_not_end_the_cordon_of_a_record() -> None:
    cordons, worker = cordons_of(WorkerRecord(URL, cordoned=True))
    await cordons.write({(URL, BY_OWNER): True})
    await cordons.write({(URL, BY_OWNER): False})
    assert CordonSource.OWNER in worker.cordons


async def test_allowed_weights_uncordon_in_every_process_that_sees_this_version() -> None:
    cordons, worker = cordons_of(least="5")
    for version, cordoned in (("3", False), ("4", True)):
        await cordons.write({(URL, weights_allowed("3")): True})
        cordons._fleet.describe(
            worker, {"echo": WorkerInfo("engine", "cap", True, card=CardValues(weight_version=version))}
        )
        assert (CordonSource.WEIGHTS in worker.cordons) is cordoned
    await cordons.write({(URL, weights_allowed("4")): True})
    assert not worker.cordons


async def test_dismissal_by_a_peer_names_the_members_that_it_is_about() -> None:
    cordons, _ = cordons_of()
    assert cordons.receive({**present(URL, DISMISSED), **present(OTHER, DISMISSED)}) == [URL]
    assert cordons.receive(present(URL, DISMISSED)) == [], "it is known by now"


# -- pauses


async def test_worker_is_cordoned_until_every_kind_and_part_is_resumed() -> None:
    cordons, worker = cordons_of()
    assert await cordons.pause([worker], "memory", {"weights"}) == {worker: {"weights"}}
    added = await cordons.pause([worker], "memory", {"weights", "kv_cache"})
    assert added == {worker: {"kv_cache"}}, "a call which fails takes back no more than that"
    await cordons.pause([worker], "generation", {"generation"})
    assert worker.reason == "paused through the gateway: generation, memory"
    await cordons.resume(worker, "memory", {"weights"})
    await cordons.resume(worker, "generation", {"generation"}, every=True)
    assert worker.state is WorkerState.CORDONED
    await cordons.resume(worker, "memory", {"kv_cache", "other"})
    assert worker.usable
    await cordons.pause([worker], "memory", {"of:its:own"})
    await cordons.resume(worker, "memory", {"weights"})
    assert worker.state is WorkerState.CORDONED
    await cordons.resume(worker, "memory", {"weights"}, every=True)
    assert worker.usable


async def test_pause_that_arrives_after_a_later_resume_cordons_nothing() -> None:
    """It was written in another process or gateway a moment before the resume here."""
    (here, worker), (there, _) = cordons_of(), cordons_of()
    await here.resume(worker, "memory", ())
    await there.pause([worker], "memory", {"weights"})
    await here.resume(worker, "memory", {"weights"}, every=True)
    here.receive(there.entries)
    assert worker.state is WorkerState.READY and not worker.cordons


# -- what ends the cordons of a process


async def test_next_process_at_an_unreachable_url_is_cordoned_by_its_owner_alone() -> None:
    """All replicas learn of it: else some would cordon a worker that others do not."""
    sent: list[Changes] = []

    async def send_to_peers(updates: Updates) -> None:
        sent.append(presence(updates))

    fleet = fleet_of(URL)
    cordons, [worker] = Cordons(fleet, MemoryStore(), send_to_peers), fleet.workers
    ends = [(URL, GENERATION), (URL, weights_allowed("1"))]
    await cordons.write(dict.fromkeys([*ends, (URL, BY_OWNER), (URL, DISMISSED)], True))
    assert worker.cordons.allowed_weights == "1"
    cordons.on_unreachable(worker)
    assert worker.cordons.allowed_weights is NO_WEIGHTS
    assert cordons.of(URL) == {BY_OWNER, DISMISSED} and list(worker.cordons) == [CordonSource.OWNER]
    await until(lambda: sent[1:] == [dict.fromkeys(ends, False)])
    cordons.remove_all(URL)
    assert cordons.of(URL) == {DISMISSED}


@pytest.mark.parametrize(
    ("seconds", "before", "after", "same"),
    [
        (MAX_WAIT_SECONDS - 1, "", "", True),
        (MAX_WAIT_SECONDS + 1, "", "", False),
        (1, "one", "one", True),
        (1, "one", "two", False),
        (1, "one", "", True),
        (1, "", "two", True),
    ],
)
async def test_cordons_wait_an_hour_for_the_process_that_departed(
    seconds: float, before: str, after: str, same: bool
) -> None:
    """Where its owner does not tell both incarnations, it may be the same."""
    cordons, worker = cordons_of()
    await cordons.write({(URL, GENERATION): True})
    for _ in range(2):
        assert cordons.on_record_removed(WorkerRecord(URL, labels={INCARNATION: before}))
        await asyncio.sleep(seconds / 2)
    await asyncio.sleep(seconds / 2)
    cordons.on_worker_added(WorkerRecord(URL, labels={INCARNATION: after}))
    await asyncio.sleep(2 * MAX_WAIT_SECONDS)
    assert cordons.of(URL) == ({GENERATION} if same else set())
    assert cordons.on_record_removed(WorkerRecord(URL)) is same


async def test_cordons_of_the_first_that_departed_end_when_too_many_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_DEPARTED", 1)
    cordons = Cordons(fleet_of(), MemoryStore())
    for url in (URL, OTHER):
        await cordons.write({(url, BY_OWNER): True})
        cordons.on_record_removed(WorkerRecord(url))
    assert not cordons.of(URL) and cordons.of(OTHER) == {BY_OWNER}


async def test_cordons_that_a_peer_sends_after_their_worker_departed_do_not_wait_forever() -> None:
    """The peer paused it a moment before its record was removed. A dismissal waits for no one."""
    cordons = Cordons(fleet_of(), MemoryStore())
    cordons.receive({**present(URL, GENERATION), **present(OTHER, DISMISSED)})
    await asyncio.sleep(MAX_WAIT_SECONDS - 1)
    cordons.receive(present(URL, PAUSE))
    assert cordons.of(URL) == {GENERATION, PAUSE}
    await asyncio.sleep(2)
    assert not cordons.of(URL) and cordons.of(OTHER) == {DISMISSED}
