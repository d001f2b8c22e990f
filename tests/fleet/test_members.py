"""What registration, change and removal mean."""

from __future__ import annotations

from random import Random
from typing import Any

from gateway.fleet.health import Health
from gateway.fleet.marks import Marks
from gateway.fleet.members import Members
from gateway.fleet.record import WorkerRecord
from gateway.fleet.registry import Fleet
from gateway.fleet.states import Hold, WorkerEvent, WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.base import WorkerInfo
from gateway.routing.policy import LeastInFlight

A, B, C = (WorkerRecord(f"http://{name}:1") for name in "abc")


class Watch:
    """Notes who is probed."""

    def __init__(self) -> None:
        self.watched: list[str] = []

    def watch(self, worker: Worker) -> None:
        self.watched.append(worker.url)

    def forget(self, worker: Worker) -> None:
        while worker.url in self.watched:
            self.watched.remove(worker.url)


def made() -> tuple[Members, Fleet, Watch]:
    fleet, watch = Fleet(LeastInFlight(Random(0)), 5.0), Watch()
    health: Any = watch
    assert callable(Health.watch) and callable(Health.forget)
    return Members(fleet, health, b"Bearer k", Marks(fleet)), fleet, watch


def urls(fleet: Fleet) -> list[str]:
    return [worker.url for worker in fleet.workers]


def test_admitted_worker_is_a_member_that_is_probed() -> None:
    """Once; the same record again makes no second one and changes nothing."""
    members, fleet, watch = made()
    worker = members.admit(A)
    assert (urls(fleet), watch.watched) == ([A.url], [A.url])
    assert worker.authorization == b"Bearer k"
    assert members.admit(WorkerRecord(A.url)) is worker
    assert urls(fleet) == [A.url]


def test_changed_record_is_the_same_worker() -> None:
    members, _, _ = made()
    worker = members.admit(A)
    assert members.admit(WorkerRecord(A.url, priority=1)) is worker
    assert worker.record.priority == 1


def test_held_record_holds_until_its_owner_says_otherwise() -> None:
    """Saying the same again does not hold a worker that was opened meanwhile."""
    members, fleet, _ = made()
    held = WorkerRecord(A.url, held=True)
    worker = members.admit(held)
    assert Hold.OWNER in worker.holds
    fleet.open(worker)
    members.admit(WorkerRecord(A.url, held=True))
    assert not worker.holds
    members.admit(A)
    members.admit(held)
    assert Hold.OWNER in worker.holds
    members.admit(A)
    assert not worker.holds


def test_store_that_begins_anew_takes_away_what_it_has_not() -> None:
    """But no worker that was given at the start."""
    members, fleet, watch = made()
    members.pin(C)
    for record in (A, B):
        members.admit(record)
    worker = fleet.find(B.url)
    members.keep_only([B])
    assert set(urls(fleet)) == {B.url, C.url}
    assert fleet.find(B.url) is worker
    assert A.url not in watch.watched
    members.gone(C.url)
    assert C.url in urls(fleet)
    assert members.dismiss(C.url)
    assert C.url not in urls(fleet)
    assert not members.dismiss(C.url)


def test_known_record_from_a_store_is_no_news() -> None:
    """A worker is not probed for each word of a store."""
    members, _, watch = made()
    members.admit(A)
    members.refresh(WorkerRecord(A.url))
    assert watch.watched == [A.url]


def test_id_of_a_worker_is_no_url() -> None:
    """Whoever registers another's id as a URL reaches nobody."""
    members, fleet, _ = made()
    worker = members.admit(A)
    members.gone(worker.id)
    assert urls(fleet) == [A.url]


def test_worker_that_drains_is_taken_back_with_what_runs_on_it() -> None:
    members, fleet, watch = made()
    worker = members.admit(A)
    worker.infos = {"echo": WorkerInfo("e", "c", True)}
    fleet.on(worker, WorkerEvent.SERVES)
    fleet.lease("c", None)
    members.gone(A.url)
    assert (worker.state, watch.watched) == (WorkerState.DRAINING, [])
    members.refresh(A)
    assert (worker.state, watch.watched) == (WorkerState.JOINING, [A.url])
    fleet.release(worker)
    assert urls(fleet) == [A.url]


def test_pinned_workers_are_probed_from_the_start_on() -> None:
    members, _, watch = made()
    members.pin(A)
    assert watch.watched == []
    members.watch_all()
    assert watch.watched == [A.url]
    assert members.is_pinned(A.url)
