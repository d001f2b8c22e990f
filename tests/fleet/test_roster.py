"""Who can serve what: fitness first, whatever the order of joining."""

from __future__ import annotations

from gateway.fleet.roster import candidates, roster_of
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import Address
from tests.support.calls import calls_of


def member(name: str, state: WorkerState, *models: str) -> Worker:
    worker = Worker(Address.parse(f"http://{name}:1"))
    worker.state = state
    worker.infos = {"echo": WorkerInfo("engine", "generate", True, models=models)}
    return worker


SUSPECT = member("s", WorkerState.SUSPECT, "m")
BUSY = member("b", WorkerState.BUSY, "m", "n")
READY = member("r", WorkerState.READY, "m")


def test_ready_workers_are_used_before_busy_before_suspect() -> None:
    roster = roster_of("generate", [SUSPECT, BUSY, READY])
    tiers = roster.of_model("m")
    assert tiers == ((READY,), (BUSY,), (SUSPECT,))
    assert list(candidates(tiers, ())) == [READY]
    assert list(candidates(tiers, [READY])) == [BUSY]
    assert list(candidates(tiers, [READY, BUSY])) == [SUSPECT]
    assert list(candidates(tiers, [READY, BUSY, SUSPECT])) == []
    assert list(candidates(roster.of_model("n"), ())) == [BUSY]
    assert set(roster.workers) == {SUSPECT, BUSY, READY}


def test_registered_model_stands_in_for_one_that_is_not_reported() -> None:
    silent = member("a", WorkerState.READY)
    silent.record = WorkerRecord(silent.url, model="registered")
    assert roster_of("generate", [silent, READY]).of_model("registered") == ((silent,),)


def test_roster_of_a_large_fleet_costs_a_few_calls_for_each_worker() -> None:
    """It is made anew after each change of a state."""
    workers = [member(f"w{n}", WorkerState.READY, "m") for n in range(512)]
    assert calls_of(lambda: roster_of("generate", workers)) < 14 * len(workers)
