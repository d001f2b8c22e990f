"""What the registration of a worker, its change and its removal mean."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.fleet.cordons import (
    BY_OWNER,
    DISMISSED,
    MAX_DEPARTED,
    TOMBSTONES,
    TOMBSTONES_PER_WORKER,
    Cordons,
    paused,
)
from gateway.fleet.members import FleetMembership
from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource, WorkerState
from gateway.stores.memory import MemoryStore
from gateway.stores.record import INCARNATION, WorkerRecord
from tests.fleet.support import ProbedWorkers, fleet_of

A, B, C = (WorkerRecord(f"http://{name}:1") for name in "abc")
PAUSE = paused("generation", "generation")


def made() -> tuple[FleetMembership, Fleet, ProbedWorkers]:
    fleet, probed = fleet_of(), ProbedWorkers()
    health: Any = probed
    cordons = Cordons(fleet, MemoryStore())
    return FleetMembership(fleet, health, b"Bearer k", cordons), fleet, probed


def urls(fleet: Fleet) -> list[str]:
    return [worker.url for worker in fleet.workers]


async def cordon(members: FleetMembership) -> None:
    await members._cordons.write({(A.url, PAUSE): True, (A.url, BY_OWNER): True})


async def test_admitted_worker_is_a_member_that_is_probed_once() -> None:
    members, fleet, watch = made()
    worker = members.admit(A)
    members.refresh(WorkerRecord(A.url))
    assert (urls(fleet), watch.watched) == ([A.url], [A.url])
    assert worker.authorization == b"Bearer k"
    for priority in (None, 1):
        assert members.admit(WorkerRecord(A.url, priority=priority)) is worker
        assert (urls(fleet), worker.record.priority) == ([A.url], priority)


async def test_record_cordons_its_worker_until_it_changes() -> None:
    members, fleet, _ = made()
    cordoned = WorkerRecord(A.url, cordoned=True)
    worker = members.admit(cordoned)
    assert CordonSource.OWNER in worker.cordons
    fleet.uncordon(worker)
    members.admit(WorkerRecord(A.url, cordoned=True))
    assert not worker.cordons
    members.admit(A)
    members.admit(cordoned)
    assert CordonSource.OWNER in worker.cordons
    members.admit(A)
    assert not worker.cordons


async def test_workers_without_a_record_leave_when_the_store_is_read_again() -> None:
    members, fleet, watch = made()
    for record in (A, B):
        members.admit(record)
    worker = fleet.find(B.url)
    members.keep_only([B])
    assert (urls(fleet), fleet.find(B.url)) == ([B.url], worker)
    assert A.url not in watch.watched


async def test_record_is_removed_by_its_url_and_not_by_the_id_of_its_worker() -> None:
    members, fleet, watch = made()
    worker = members.admit(A)
    members.on_record_removed(worker.id)
    assert urls(fleet) == [A.url]
    members.on_record_removed(A.url)
    assert not fleet.workers and not watch.checked, "no cordon of it has to end with its process"


async def test_draining_worker_is_taken_back_with_what_runs_on_it() -> None:
    members, fleet, watch = made()
    worker = members.admit(A)
    worker.in_flight = 1
    members.on_record_removed(A.url)
    assert (worker.state, watch.watched) == (WorkerState.DRAINING, [])
    members.refresh(A)
    assert (worker.state, watch.watched) == (WorkerState.JOINING, [A.url])
    fleet.release(worker)
    assert urls(fleet) == [A.url]


async def test_worker_that_another_process_dismissed_is_no_member_and_not_probed() -> None:
    members, fleet, watch = made()
    await members._cordons.write({(A.url, DISMISSED): True})
    members.admit(A)
    assert (urls(fleet), watch.watched) == ([], [])


async def test_pinned_worker_is_probed_from_the_start_on_and_stays_until_it_is_dismissed() -> None:
    members, fleet, watch = made()
    members.pin(A)
    assert watch.watched == []
    members.watch_all()
    assert watch.watched == [A.url] and members.is_pinned(A.url)
    members.keep_only([])
    members.on_record_removed(A.url)
    assert urls(fleet) == [A.url]
    assert members.dismiss(A.url)
    assert not fleet.workers and not members.dismiss(A.url)


@pytest.mark.parametrize("running", [0, 1])
@pytest.mark.parametrize("way", ["gone", "reset"])
async def test_worker_whose_record_is_removed_for_a_moment_stays_paused(way: str, running: int) -> None:
    """Its TTL expired, or a pod was not ready. It is asked whether it listens, even if requests run on it."""
    members, fleet, watch = made()
    worker = members.admit(A)
    worker.in_flight = running
    await cordon(members)
    if way == "gone":
        members.on_record_removed(A.url)
    else:
        members.keep_only([B])
    assert watch.checked == [A.url] and A.url not in watch.watched
    members.refresh(A)
    back = fleet.find(A.url)
    assert back is not None and set(back.cordons) == {CordonSource.OWNER, CordonSource.PAUSED}
    assert (back is worker) is bool(running)


@pytest.mark.parametrize("removed_first", [False, True])
async def test_dismissed_worker_has_no_cordons_when_it_is_registered_again(removed_first: bool) -> None:
    members, _, _ = made()
    members.admit(A)
    await cordon(members)
    if removed_first:
        members.on_record_removed(A.url)
    assert members.dismiss(A.url) is not removed_first
    assert not members.admit(A).cordons


@pytest.mark.parametrize("away", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "held"),
    [("one", "two", False), ("one", "one", True), ("one", "", True), ("", "two", True)],
)
async def test_another_incarnation_has_no_cordons(before: str, after: str, held: bool, away: bool) -> None:

    def pod(uid: str) -> WorkerRecord:
        return WorkerRecord(A.url, labels={INCARNATION: uid} if uid else {})

    members, _, _ = made()
    members.admit(pod(before))
    await cordon(members)
    if away:
        members.on_record_removed(A.url)
    assert bool(members.admit(pod(after)).cordons) is held


async def test_memory_does_not_grow_with_the_workers_that_left() -> None:
    """Machines come and go for months, each with a URL of its own: dismissed, or departed, paused or not."""
    members, fleet, _ = made()
    for number in range(10_000):
        record = WorkerRecord(f"http://10.0.0.1:{number + 1}")
        members.admit(record)
        if number % 5:
            await members._cordons.write({(record.url, PAUSE): True})
        if number % 3 == 0:
            await members._cordons.write({(record.url, PAUSE): False})
        if number % 2:
            members.dismiss(record.url)
        else:
            members.on_record_removed(record.url)
    assert not fleet.workers
    entries = members._cordons.entries.values()
    tombstones = sum(not entry.present for entry in entries)
    assert tombstones <= TOMBSTONES + TOMBSTONES_PER_WORKER
    assert len(entries) - tombstones <= len(members._cordons._departed) <= MAX_DEPARTED


async def test_configured_worker_counts_once_however_it_is_spelled(caplog: pytest.LogCaptureFixture) -> None:
    """A cordon of one spelling is one of the worker, and survives the record of another one."""
    members, fleet, _ = made()
    for url in ("http://a:80", "HTTP://A/", "http://a:81"):
        members.pin(WorkerRecord(url))
    assert urls(fleet) == ["http://a:80", "http://a:81"]
    assert "HTTP://A/" in caplog.text
    await members._cordons.write({("http://A", BY_OWNER): True})
    members.keep_only([WorkerRecord("http://a/")])
    assert CordonSource.OWNER in fleet.workers[0].cordons
    assert members._cordons.of("http://a:080/") == {BY_OWNER}
