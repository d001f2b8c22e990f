"""The marks of workers that were paused through the gateway."""

from __future__ import annotations

import random

from gateway.fleet.address import Address
from gateway.fleet.pauses import Pauses
from gateway.fleet.registry import Fleet
from gateway.fleet.states import Hold, WorkerEvent, WorkerState
from gateway.fleet.worker import Worker
from gateway.routing.policy import LeastInFlight


def ready() -> tuple[Fleet, Worker, Pauses]:
    fleet, worker = Fleet(LeastInFlight(random.Random(0)), 1.0), Worker(Address.parse("http://w:1"))
    fleet.add(worker)
    fleet.on(worker, WorkerEvent.SERVES)
    return fleet, worker, Pauses(fleet)


def test_worker_is_held_until_every_kind_and_part_is_back() -> None:
    _, worker, pauses = ready()
    pauses.pause(worker, "memory", {"weights", "kv_cache"})
    pauses.pause(worker, "generation", {"generation"})
    assert worker.reason == "paused through the gateway: generation, memory"
    pauses.resume(worker, "memory", {"weights"})
    pauses.resume(worker, "generation", None)
    assert worker.state is WorkerState.HELD
    pauses.resume(worker, "memory", {"kv_cache", "other"})
    assert worker.usable


def test_pausing_tells_what_was_there_before() -> None:
    """So that a call which fails takes back no more than it did."""
    _, worker, pauses = ready()
    assert pauses.pause(worker, "memory", {"weights"}) == {"weights"}
    assert pauses.pause(worker, "memory", {"weights", "kv_cache"}) == {"kv_cache"}
    pauses.resume(worker, "memory", {"kv_cache"})
    assert worker.state is WorkerState.HELD


def test_other_holds_stay_when_a_pause_ends() -> None:
    fleet, worker, pauses = ready()
    fleet.hold(worker, Hold.OWNER, "mine")
    pauses.pause(worker, "generation", {"generation"})
    pauses.resume(worker, "generation", None)
    assert (worker.state, worker.reason) == (WorkerState.HELD, "mine")


def test_death_ends_a_pause_and_what_was_known_of_it() -> None:
    fleet, worker, pauses = ready()
    pauses.pause(worker, "memory", {"weights"})
    fleet.on(worker, WorkerEvent.DIE, "gone")
    fleet.on(worker, WorkerEvent.SERVES)
    assert worker.usable
    pauses.pause(worker, "generation", {"generation"})
    assert worker.reason == "paused through the gateway: generation"


def test_resuming_what_was_never_paused_changes_nothing() -> None:
    _, worker, pauses = ready()
    pauses.resume(worker, "memory", None)
    pauses.resume(worker, "memory", {"weights"})
    assert worker.state is WorkerState.READY and not worker.holds
