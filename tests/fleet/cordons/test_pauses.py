"""Workers that were paused through the gateway."""

from __future__ import annotations

import random

from gateway.fleet.cordons.cordons import Cordons
from gateway.fleet.cordons.pauses import Pauses
from gateway.fleet.cordons.replication import CordonReplication
from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource, WorkerEvent, WorkerState
from gateway.fleet.worker import Worker
from gateway.routing.policy import LeastInFlight
from gateway.stores.memory import MemoryStore
from gateway.upstream.address import Address


def ready() -> tuple[Fleet, Worker, Pauses]:
    fleet, worker = Fleet(LeastInFlight(random.Random(0)), 1.0), Worker(Address.parse("http://w:1"))
    fleet.add(worker)
    fleet.on(worker, WorkerEvent.SERVES)
    marks = Cordons(fleet)
    fleet.vanished = lambda url: marks.lift(url, held=False)
    return fleet, worker, Pauses(CordonReplication(marks, MemoryStore()))


async def test_worker_is_held_until_every_kind_and_part_is_back() -> None:
    _, worker, pauses = ready()
    await pauses.pause([worker], "memory", {"weights", "kv_cache"})
    await pauses.pause([worker], "generation", {"generation"})
    assert worker.reason == "paused through the gateway: generation, memory"
    await pauses.resume(worker, "memory", {"weights"})
    await pauses.resume(worker, "generation", {"generation"}, every=True)
    assert worker.state is WorkerState.CORDONED
    await pauses.resume(worker, "memory", {"kv_cache", "other"})
    assert worker.usable


async def test_pausing_tells_what_was_there_before() -> None:
    """So that a call which fails takes back no more than it did."""
    _, worker, pauses = ready()
    assert await pauses.pause([worker], "memory", {"weights"}) == {worker: {"weights"}}
    assert await pauses.pause([worker], "memory", {"weights", "kv_cache"}) == {worker: {"kv_cache"}}
    await pauses.resume(worker, "memory", {"kv_cache"})
    assert worker.state is WorkerState.CORDONED


async def test_other_holds_stay_when_a_pause_ends() -> None:
    fleet, worker, pauses = ready()
    fleet.cordon(worker, CordonSource.OWNER, "mine")
    await pauses.pause([worker], "generation", {"generation"})
    await pauses.resume(worker, "generation", {"generation"}, every=True)
    assert (worker.state, worker.reason) == (WorkerState.CORDONED, "mine")


async def test_worker_that_was_only_silent_is_still_paused() -> None:
    """An engine that loads weights may answer nothing for a while."""
    fleet, worker, pauses = ready()
    await pauses.pause([worker], "memory", {"weights"})
    fleet.on(worker, WorkerEvent.DIE, "two probes failed")
    fleet.on(worker, WorkerEvent.SERVES)
    assert (worker.state, list(worker.cordons)) == (WorkerState.CORDONED, [CordonSource.PAUSED])


async def test_nobody_at_its_url_ends_a_pause_and_what_was_known_of_it() -> None:
    """Whoever comes next was paused by nobody."""
    fleet, worker, pauses = ready()
    await pauses.pause([worker], "memory", {"weights"})
    fleet.on(worker, WorkerEvent.DIE, "refused")
    fleet.absent(worker)
    fleet.on(worker, WorkerEvent.SERVES)
    assert worker.usable
    await pauses.pause([worker], "generation", {"generation"})
    assert worker.reason == "paused through the gateway: generation"


async def test_resuming_all_takes_back_what_was_named_by_nobody() -> None:
    _, worker, pauses = ready()
    await pauses.pause([worker], "memory", {"of_its_own"})
    await pauses.resume(worker, "memory", {"weights"})
    assert worker.state is WorkerState.CORDONED
    await pauses.resume(worker, "memory", {"weights"}, every=True)
    assert worker.usable


async def test_resuming_what_was_never_paused_changes_nothing() -> None:
    _, worker, pauses = ready()
    await pauses.resume(worker, "memory", ())
    await pauses.resume(worker, "memory", {"weights"})
    assert worker.state is WorkerState.READY and not worker.cordons


async def test_pause_that_is_heard_of_after_the_resume_holds_nobody() -> None:
    """It was called at another process or gateway, the resume at this one a moment later."""
    (_, worker, here), (_, _, there) = ready(), ready()
    await there.pause([worker], "memory", {"weights"})
    await here.resume(worker, "memory", {"weights"}, every=True)
    here._marks.hear(there._marks.all)
    assert worker.usable
