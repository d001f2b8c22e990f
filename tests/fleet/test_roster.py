"""Who can serve what: fitness first, whatever the order of joining."""

from __future__ import annotations

import time

import pytest

from gateway.fleet.roster import candidates, roster_of
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import Address


def member(name: str, state: WorkerState, *models: str) -> Worker:
    worker = Worker(Address.parse(f"http://{name}:1"))
    worker.state = state
    worker.infos = {"echo": WorkerInfo("engine", "generate", True, models=models)}
    return worker


SUSPECT = member("s", WorkerState.SUSPECT, "m")
BUSY = member("b", WorkerState.BUSY, "m", "n")
READY = member("r", WorkerState.READY, "m")


def test_ready_before_busy_before_suspect() -> None:
    """Those that are not fit are used if nobody better is there, or left to try."""
    roster = roster_of("generate", [SUSPECT, BUSY, READY])
    tiers = roster.of_model("m")
    assert tiers == ((READY,), (BUSY,), (SUSPECT,))
    assert list(candidates(tiers, ())) == [READY]
    assert list(candidates(tiers, [READY])) == [BUSY]
    assert list(candidates(tiers, [READY, BUSY])) == [SUSPECT]
    assert list(candidates(tiers, [READY, BUSY, SUSPECT])) == []
    assert list(candidates(roster.of_model("n"), ())) == [BUSY]
    assert set(roster.workers) == {SUSPECT, BUSY, READY}


@pytest.mark.parametrize("state", [WorkerState.CORDONED, WorkerState.DRAINING, WorkerState.DEAD])
def test_model_of_those_that_are_not_to_be_used_is_away(state: WorkerState) -> None:
    roster = roster_of("generate", [member("a", state, "x"), READY])
    assert roster.of_model("x") == ()


def test_registered_model_stands_in_for_one_that_is_not_reported() -> None:
    silent = member("a", WorkerState.READY)
    silent.record = WorkerRecord(silent.url, model="said")
    assert roster_of("generate", [silent, READY]).of_model("said") == ((silent,),)


def test_roster_of_a_large_fleet_is_made_fast() -> None:
    """It is made anew after each change of a state; the best of a few looks."""
    workers = [member(f"w{n}", WorkerState.READY, "m") for n in range(512)]
    times = []
    for _ in range(5):
        began = time.thread_time()
        roster_of("generate", workers)
        times.append(time.thread_time() - began)
    assert min(times) < 0.01
