"""Races, every order of them: one outcome, one lease returned, one abort at most and never another's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.formats.optional import AbortTarget
from gateway.loop.tasks import Tasks
from gateway.upstream.connection import Connection
from tests.support.stepped_world import World
from tests.support.stepping import AGES, SteppedLoop, Wire, interleavings, pauses, settle

KINDS = ("sglang", "vllm")
#: The prompts of the exchange that is raced for, and of one beside it.
RACER, BYSTANDER = 1, 2


@dataclass
class Race:
    """A world, the client whose exchange is raced for, and what happened to it."""

    world: World
    client: Wire
    reset: bool
    left: bool = False
    drained: bool = False
    tasks: Tasks = field(default_factory=Tasks)
    calls: list[asyncio.Task[Any]] = field(default_factory=list)
    #: What was closed, and what was kept for later, when all was over.
    closed: list[Wire] = field(default_factory=list)
    kept: list[Connection] = field(default_factory=list)

    def worker_steps(self) -> None:
        for asked in self.world.of(RACER)[-1:]:
            asked.step()

    def worker_breaks(self) -> None:
        for asked in self.world.of(RACER)[-1:]:
            asked.wire.leave(reset=self.reset)

    def worker_refuses(self) -> None:
        """It had closed the connection, and its TCP takes nothing of the request. The next one is dialled."""
        self.world.drop_connections()
        for asked in self.world.of(RACER)[:1]:
            asked.wire.taken = False
            asked.wire.leave(reset=False)

    def client_leaves(self) -> None:
        self.left = True
        self.client.leave(reset=self.reset)

    def dial_fails(self) -> None:
        self.world.dial(fails=True)

    def dial_succeeds(self) -> None:
        self.world.dial()

    def abort_is_asked(self) -> None:
        target = AbortTarget(everything=False, ids=("job",))
        work = self.world.services.aborter.abort(target, self.world.format)
        self.calls.append(self.tasks.spawn(work, "abort call"))

    def drain_begins(self) -> None:
        self.drained = True
        self.world.services.lifecycle.drain()

    def grace_is_over(self) -> None:
        self.tasks.spawn(self.world.services.lifecycle.cut(), "cut")


Actors = Sequence[Sequence[str]]
WORKER = ("worker_steps",) * 4
#: What races with what.
RACES: Mapping[str, Actors] = {
    "finish against leave": (WORKER, ("client_leaves",)),
    "abort against terminal": (WORKER, ("abort_is_asked",)),
    "abort against terminal against leave": (WORKER[:3], ("abort_is_asked",), ("client_leaves",)),
    "retry against leave": (
        ("dial_fails", "dial_succeeds", "worker_steps", "worker_steps"),
        ("client_leaves",),
    ),
    "retry against abort": (("dial_fails", "dial_succeeds", "worker_steps"), ("abort_is_asked",)),
    "refusal against leave": (("worker_refuses", "dial_succeeds", "worker_steps"), ("client_leaves",)),
    "refusal against abort": (("worker_refuses", "dial_succeeds", "worker_steps"), ("abort_is_asked",)),
    "break against leave": (("worker_steps", "worker_steps", "worker_breaks"), ("client_leaves",)),
    "break against abort": (("worker_steps", "worker_breaks"), ("abort_is_asked",), ("client_leaves",)),
    "drain against commit": (WORKER, ("drain_begins", "grace_is_over")),
    "drain against commit against leave": (
        WORKER[:2],
        ("drain_begins", "grace_is_over"),
        ("client_leaves",),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("race", RACES)
def test_race_has_one_outcome_in_every_order(race: str, kind: str) -> None:
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        for order in interleavings(RACES[race]):
            for number, settled in enumerate(pauses(len(order), single=len(RACES[race]) == 2)):
                # A pause after a single event makes no difference that depends on these.
                for stream, reset in ((True, False), (True, True), (False, False))[: 3 if number < 2 else 1]:
                    run, bystander = runner.run(_run(race, kind, order, settled, stream, reset))
                    try:
                        _check(run, bystander)
                    except AssertionError as error:
                        raise AssertionError(f"{order}, settled after {sorted(settled)}") from error


async def _run(
    race: str, kind: str, order: Sequence[str], settled: frozenset[int], stream: bool, reset: bool
) -> tuple[Race, Wire]:
    world = World(kind, workers=2)
    # One that begins like the racer's where that is aborted by name, else the same.
    beside = "job-1" if "abort" in race else "job"
    bystander = world.client(BYSTANDER, beside, stream=stream)
    await settle()
    world.holds_dials = "retry" in race or "refusal" in race
    if "refusal" in race:
        world.keep_connections()
    run = Race(world, world.client(RACER, "job", stream=stream), reset)
    if "retry" not in race:
        await settle()
    for place, name in enumerate(order):
        step: Callable[[], None] = getattr(run, name)
        step()
        if place in settled:
            await settle()
    world.release_dials()
    await settle()
    for asked in world.of(RACER)[-1:]:
        asked.finish()
    await settle()
    for asked in world.of(BYSTANDER):
        asked.finish()
    await asyncio.sleep(AGES)
    for call in run.calls:
        assert all(result.error is None for result in await call)
    await run.tasks.wait(None)
    pools = [worker.pool for worker in world.workers]
    run.kept = [each for pool in pools for each in (*pool._idle, pool._spare) if each is not None]
    run.closed = [asked.wire for asked in world.requests if asked.wire.closed]
    world.services.fleet.close()
    return run, bystander


def _check(run: Race, bystander: Wire) -> None:
    world = run.world
    _check_what_is_held(run)
    _check_aborts(run)
    _check_reply(run)
    if not run.drained:
        assert _succeeded(bystander.written), bystander.written
    counted = world.counted()
    assert counted["success"] + counted["error"] == 2
    if not run.left:
        assert counted["success"] == _succeeded(run.client.written) + _succeeded(bystander.written)


def _check_what_is_held(run: Race) -> None:
    """Nothing: no lease, no exchange, no id, no connection but those kept for later."""
    world, services = run.world, run.world.services
    assert [worker.in_flight for worker in services.fleet.workers] == [0, 0]
    assert services.lifecycle.open_exchanges == 0
    assert not list(services.in_flight.all()) and len(services.in_flight) == 0
    for asked in world.requests:
        assert (asked.wire.protocol in run.kept) != (asked.wire in run.closed)


def _check_aborts(run: Race) -> None:
    """Of the racer only, where it was, once for its own end and once for each call that named it."""
    world = run.world
    own = {asked.id: asked for asked in world.of(RACER)}
    aborted = Counter(id for _, id in world.aborts)
    others = {asked.id for asked in world.of(BYSTANDER)} if run.drained else set()
    assert set(aborted) <= set(own) | others, (aborted, own)
    assert all(own[id].worker is worker for worker, id in world.aborts if id in own)
    if any(result.worker is not None for call in run.calls for result in call.result()):
        assert all(aborted[id] for id in own), "an abort call was confirmed, and its worker was sent no abort"
    assert sum(aborted[id] for id in own) <= 1 + len(run.calls)
    received = [asked for asked in world.of(RACER) if asked.wire.taken]
    assert len(received) <= 1 and len({asked.worker for asked in world.of(RACER)}) == len(world.of(RACER))
    if received and received[0].wire in run.closed and not _is_complete(run.client.written):
        assert aborted[received[0].id] >= 1, "its client disconnected, and its worker was sent no abort"


def _check_reply(run: Race) -> None:
    """A client that stays gets one reply, complete or truncated; one that left is sent nothing more."""
    written = run.client.written
    assert not run.client.late
    if not run.left:
        assert written.count(b"HTTP/1.1 ") == 1
        assert _is_complete(written) or run.client.closed


def _succeeded(written: bytes) -> bool:
    return written.startswith(b"HTTP/1.1 200") and _is_complete(written) and b'"error"' not in written


def _is_complete(written: bytes) -> bool:
    head, _, body = written.partition(b"\r\n\r\n")
    if b"chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(length) and len(body) == int(length[0].partition(b":")[2])
