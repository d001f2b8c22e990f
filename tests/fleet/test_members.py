"""What registration, change and removal mean."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from gateway.fleet.cordons.cordons import HELD, LIFTED, LIFTED_EACH, Cordons, paused
from gateway.fleet.cordons.departures import MOST
from gateway.fleet.health.health import Health
from gateway.fleet.members import Members
from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource, WorkerEvent, WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.routing.policy import LeastInFlight
from gateway.stores.record import INCARNATION, WorkerRecord

A, B, C = (WorkerRecord(f"http://{name}:1") for name in "abc")
PAUSE = paused("generation", "generation")


class Watch:
    """Notes who is probed."""

    def __init__(self) -> None:
        self.watched: list[str] = []
        self.looked_after: list[str] = []

    def watch(self, worker: Worker) -> None:
        self.watched.append(worker.url)

    def forget(self, worker: Worker) -> None:
        while worker.url in self.watched:
            self.watched.remove(worker.url)

    def look_after(self, worker: Worker) -> None:
        self.looked_after.append(worker.url)


def made(fleet: Fleet | None = None, marks: Cordons | None = None) -> tuple[Members, Fleet, Watch]:
    fleet, watch = fleet or Fleet(LeastInFlight(Random(0)), 5.0), Watch()
    health: Any = watch
    assert all(callable(each) for each in (Health.watch, Health.forget, Health.look_after))
    return Members(fleet, health, b"Bearer k", marks or Cordons(fleet)), fleet, watch


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
    assert CordonSource.OWNER in worker.cordons
    fleet.uncordon(worker)
    members.admit(WorkerRecord(A.url, held=True))
    assert not worker.cordons
    members.admit(A)
    members.admit(held)
    assert CordonSource.OWNER in worker.cordons
    members.admit(A)
    assert not worker.cordons


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


def marked() -> tuple[Members, Cordons, Watch, Fleet]:
    fleet = Fleet(LeastInFlight(Random(0)), 5.0)
    marks = Cordons(fleet)
    members, _, watch = made(fleet, marks)
    return members, marks, watch, fleet


@pytest.mark.parametrize("running", [0, 1])
@pytest.mark.parametrize("way", ["gone", "reset"])
def test_record_that_goes_for_a_moment_leaves_a_worker_paused(way: str, running: int) -> None:
    """A lease ran out, or a pod was unready: nobody resumed the engine, be it that requests still run on it.
    It is asked whether it is there."""
    members, marks, watch, fleet = marked()
    worker = members.admit(A)
    worker.in_flight = running
    marks.say({A.url: {PAUSE: True, HELD: True}})
    if way == "gone":
        members.gone(A.url)
    else:
        members.keep_only([B])
    assert watch.looked_after == [A.url] and A.url not in watch.watched
    members.refresh(A)
    back = fleet.find(A.url)
    assert back is not None and set(back.cordons) == {CordonSource.OWNER, CordonSource.PAUSED}
    assert (back is worker) is bool(running)


def test_worker_without_marks_leaves_without_a_question() -> None:
    members, _, watch, _ = marked()
    members.admit(A)
    members.gone(A.url)
    assert not watch.looked_after


def test_removed_worker_is_free_when_it_is_registered_again() -> None:
    """Somebody said that it is done with; also if the store told so first, that its record is gone."""
    for first in (False, True):
        members, marks, _, _ = marked()
        members.admit(A)
        marks.say({A.url: {PAUSE: True, HELD: True}})
        if first:
            members.gone(A.url)
        assert members.dismiss(A.url) is not first
        assert not members.admit(A).cordons


@pytest.mark.parametrize("away", [True, False])
def test_another_engine_at_a_url_was_paused_and_held_by_nobody(away: bool) -> None:
    """Its owner says that it is another one, be it that a moment without any was noticed or not."""

    def pod(uid: str) -> WorkerRecord:
        return WorkerRecord(A.url, labels={INCARNATION: uid} if uid else {})

    cases = [("one", "two", False), ("one", "one", True), ("one", "", True), ("", "two", True)]
    for before, after, held in cases:
        members, marks, _, fleet = marked()
        members.admit(pod(before))
        marks.say({A.url: {PAUSE: True, HELD: True}})
        if away:
            members.gone(A.url)
        members.refresh(pod(after))
        found = fleet.find(A.url)
        assert found is not None and bool(found.cordons) is held, (before, after)


def test_what_is_remembered_does_not_grow_with_the_workers_that_were_there() -> None:
    """Machines come and go for months, each with a URL of its own: removed, gone, or gone while paused."""
    members, marks, _, fleet = marked()
    for number in range(10_000):
        record = WorkerRecord(f"http://10.0.0.1:{number + 1}")
        members.admit(record)
        if number % 5:
            marks.say({record.url: {PAUSE: True}})
        if number % 3 == 0:
            marks.say({record.url: {PAUSE: False}})
        if number % 2:
            members.dismiss(record.url)
        else:
            members.gone(record.url)
    assert not fleet.workers
    assert len(marks._lifted) <= LIFTED + LIFTED_EACH
    assert len(marks._there) <= len(members._lapses._left) <= MOST
