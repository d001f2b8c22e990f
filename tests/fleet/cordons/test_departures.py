"""For how long the marks of a worker that left wait for it."""

from __future__ import annotations

from random import Random

import pytest

from gateway.fleet.cordons import departures as module
from gateway.fleet.cordons.cordons import HELD, REMOVED, Cordons, paused
from gateway.fleet.cordons.departures import LONGEST, Departures
from gateway.fleet.registry import Fleet
from gateway.routing.policy import LeastInFlight
from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Versioned

A, B = WorkerRecord("http://a:1"), WorkerRecord("http://b:1")
PAUSE = paused("generation", "generation")


class World:
    """A clock that is set by hand, and marks of A and B."""

    def __init__(self) -> None:
        self.now = 0.0
        self.marks = Cordons(Fleet(LeastInFlight(Random(0)), 1.0))
        self.lapses = Departures(self.marks, lambda: self.now)
        self.marks.say({A.url: {PAUSE: True}, B.url: {HELD: True}})


def test_worker_that_is_back_within_the_time_has_its_marks() -> None:
    world = World()
    assert world.lapses.left(A)
    world.now = LONGEST
    world.lapses.came(A)
    assert world.marks.of(A.url) == {PAUSE}
    world.now = 3 * LONGEST
    world.lapses.came(A)
    assert world.marks.of(A.url) == {PAUSE}, "it had not left again"


def test_whoever_comes_later_is_taken_for_another() -> None:
    world = World()
    world.lapses.left(A)
    world.now = LONGEST + 1
    world.lapses.came(A)
    assert not world.marks.of(A.url)


def test_marks_of_whom_nobody_expects_any_more_are_lifted_when_others_leave() -> None:
    world = World()
    world.lapses.left(A)
    world.now = LONGEST + 1
    world.lapses.left(B)
    assert not world.marks.of(A.url) and world.marks.of(B.url) == {HELD}


def test_marks_wait_for_so_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that left go first."""
    monkeypatch.setattr(module, "MOST", 1)
    world = World()
    world.lapses.left(A)
    world.lapses.left(B)
    assert not world.marks.of(A.url) and world.marks.of(B.url) == {HELD}


def test_worker_without_marks_is_not_waited_for() -> None:
    assert not World().lapses.left(WorkerRecord("http://c:1"))


def test_marks_that_come_after_their_worker_left_wait_no_longer() -> None:
    """Another process was told of a pause a moment before the record went. A removal waits for nobody."""
    world = World()
    there = Versioned(1 << 60, "other", True)
    world.marks.hear({"http://c:1": {PAUSE: there}, "http://d:1": {REMOVED: there}})
    world.now = LONGEST + 1
    world.lapses.left(A)
    assert world.marks.of("http://d:1") == {REMOVED}
    assert not world.marks.of("http://c:1")
