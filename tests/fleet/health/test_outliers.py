"""Workers that fail while others do not: what they are sent, and when they are trusted again."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from gateway.fleet.health.health import Health
from gateway.fleet.health.outliers import MIN_REPLIES, OutlierDetector
from gateway.fleet.registry import Fleet
from gateway.fleet.replies import ReplyOutcome
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.routing.policy import POLICIES
from gateway.sim import SimConfig, SimServer
from gateway.sim.script import Drop, Half, Reply, Script
from tests.fleet.engine import EchoFormat, engine
from tests.fleet.support import fleet_with, member
from tests.support.gateway import Rig, generates, rig, until
from tests.support.generate import KINDS, body_of

pytestmark = pytest.mark.virtual_time

ECHO: Any = EchoFormat()
GOOD, FAILED, BROKEN = ReplyOutcome.GOOD, ReplyOutcome.FAILED, ReplyOutcome.BROKEN
REFUSED = ReplyOutcome.REFUSED
READY = WorkerState.READY
#: A worker answers all with 503. (This is no ReplyOutcome.)
FULL = "full"
#: Seconds that a good reply takes.
DURATION = 0.1


@dataclass
class Ward:
    """Workers that are probed over sockets; requests to them are simulated."""

    fleet: Fleet
    health: Health
    #: How requests end at a worker that is ill.
    symptoms: dict[Worker, str] = field(default_factory=dict)
    got: Counter[Worker] = field(default_factory=Counter)

    @property
    def ill(self) -> Worker:
        return self.fleet.workers[0]

    def infect(self, symptom: str, *workers: Worker) -> None:
        self.symptoms.update(dict.fromkeys(workers or (self.ill,), symptom))

    async def one(self, key: str | None = None) -> bool:
        """Send one request; True if its reply was good."""
        worker, began = self.fleet.lease(ECHO.capability, None, key=key), asyncio.get_running_loop().time()
        incarnation, symptom = worker.incarnation, self.symptoms.get(worker, GOOD)
        self.got[worker] += 1
        await asyncio.sleep(DURATION if symptom == GOOD else 0.001)
        self.fleet.release(worker)
        if symptom == FULL:
            self.health.report_busy(worker, 503, None)
        outcome = ReplyOutcome.UNKNOWN if symptom == FULL else ReplyOutcome(symptom)
        seconds = asyncio.get_running_loop().time() - began
        self.health.outliers.observe(worker, incarnation, outcome, seconds, key)
        return symptom == GOOD

    async def load(self, seconds: float, clients: int = 8) -> Counter[bool]:
        return await load(self.one, seconds, clients)


async def load(one: Any, seconds: float = 1e6, clients: int = 8, *, requests: int = 10**6) -> Counter[bool]:
    """Call ``one`` for ``seconds``, or ``requests`` times, from ``clients``.

    Each waits for 50 ms after a failure.
    """
    counts: Counter[bool] = Counter()
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async def client() -> None:
        while loop.time() < end and counts.total() < requests:
            good = await one()
            counts[good] += 1
            if not good:
                await asyncio.sleep(0.05)

    await asyncio.gather(*(client() for _ in range(clients)))
    return counts


@asynccontextmanager
async def ward(workers: int = 4, policy: str = "least_in_flight") -> AsyncIterator[Ward]:
    """Workers that are ready. They are probed only while they do not serve, or after failures."""
    fleet = fleet_with(policy=POLICIES[policy](random.Random(0)))
    health = Health(fleet, [ECHO], 0)
    async with AsyncExitStack() as stack:
        for _ in range(workers):
            worker = (await stack.enter_async_context(engine())).worker()
            fleet.add(worker)
            health.watch(worker)
        await until(lambda: all(worker.state is READY for worker in fleet.workers))
        yield Ward(fleet, health)
        await health.stop()
        fleet.close()


@pytest.mark.parametrize("policy", ["least_in_flight", "least_loaded"])
@pytest.mark.parametrize("warm_up", [1.0, 0.0])
async def test_one_failing_worker_of_four_fails_a_twentieth_of_the_requests_at_most(
    policy: str, warm_up: float
) -> None:
    """Also one that fails from its first request on."""
    async with ward(policy=policy) as of:
        assert (await of.load(warm_up))[False] == 0
        of.infect(FAILED)
        counts = await of.load(4)
        assert counts[False] <= counts.total() / 20, counts
        assert of.ill.vitals.on_trial
        assert {worker.state for worker in of.fleet.workers[1:]} == {READY}


async def test_refusals_of_requests_take_no_worker_out_and_attract_nothing() -> None:
    """Its share is a quarter; a little more is left for the time before its good replies are known."""
    async with ward() as of:
        await of.load(1)
        of.infect(REFUSED)
        counts = await of.load(4)
        assert of.ill.state is READY
        assert counts[False] <= 0.3 * counts.total(), counts


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("symptom", [FAILED, REFUSED])
async def test_failures_that_all_workers_have_alike_take_no_worker_out(symptom: str, workers: int) -> None:
    async with ward(workers) as of:
        await of.load(1)
        of.infect(symptom, *of.fleet.workers)
        await of.load(3)
        assert {worker.state for worker in of.fleet.workers} == {READY}


@pytest.mark.parametrize("replies", [MIN_REPLIES - 1, MIN_REPLIES])
@pytest.mark.parametrize("others", [MIN_REPLIES - 1, MIN_REPLIES])
async def test_worker_is_no_outlier_before_it_and_the_others_have_had_enough_replies(
    replies: int, others: int
) -> None:
    fleet = fleet_with(member("a", "m"), member("b", "m"))
    ill, well = fleet.workers
    detector = OutlierDetector(fleet, lambda worker: None)
    for worker, count, outcome in ((well, others, GOOD), (ill, replies, FAILED)):
        for _ in range(count):
            detector.observe(worker, worker.incarnation, outcome, DURATION)
    ejected = replies == others == MIN_REPLIES
    assert (ill.state, ill.vitals.on_trial) == ((WorkerState.BUSY, True) if ejected else (READY, False))


async def test_ejected_worker_is_tried_with_one_request_after_growing_pauses() -> None:
    async with ward() as of:
        await of.load(1)
        of.infect(FAILED)
        await of.load(1)
        before = of.got[of.ill]
        await of.load(14)
        # Pauses of 1, 2, 4 and 8 seconds begin in these 14; a trial request ends each.
        assert 3 <= of.got[of.ill] - before <= 4


async def test_ejected_worker_that_has_recovered_gets_its_share_again() -> None:
    async with ward() as of:
        await of.load(1)
        of.infect(FAILED)
        await of.load(2)
        of.symptoms.clear()
        before, counts = of.got[of.ill], await of.load(10)
        assert counts[False] == 0
        assert of.got[of.ill] - before >= counts.total() / 6
        assert (of.ill.state, of.ill.vitals.on_trial) == (READY, False)


async def test_sessions_of_a_failing_worker_move() -> None:
    async with ward() as of:
        await of.load(1)
        of.infect(FAILED)
        await of.load(2)
        good = [await of.one(key=f"session-{number}") for number in range(24)]
        assert good.count(False) <= 2  # the trial requests of some


async def test_one_session_that_fails_everywhere_takes_no_worker_out() -> None:
    async with ward(2) as of:
        await of.load(1)
        for number in range(30):
            of.infect(FAILED, *of.fleet.workers)
            assert not await of.one(key="evil")
            of.symptoms.clear()
            assert await of.one(key=f"other-{number}")
        assert {worker.state for worker in of.fleet.workers} == {READY}


async def test_worker_that_breaks_each_reply_and_passes_each_probe_is_tried_after_growing_pauses() -> None:
    async with ward() as of:
        await of.load(1)
        of.infect(BROKEN)
        counts = await of.load(4)
        assert counts[False] <= counts.total() / 50, counts


async def test_full_worker_that_names_no_time_is_asked_after_growing_pauses() -> None:
    async with ward() as of:
        await of.load(1)
        of.infect(FULL)
        counts = await of.load(20, clients=4)
        assert counts[False] <= 10, counts


async def test_places_of_failed_replies_are_given_up() -> None:
    async with ward() as of:
        await of.load(1)
        of.infect(REFUSED)
        while await of.one():
            pass
        assert (of.ill.in_flight, of.ill.occupancy) == (0, 1)
        await asyncio.sleep(1)
        assert (of.ill.in_flight, of.ill.occupancy) == (0, 0)


# -- through a gateway, in front of simulated engines


def _event(text: str) -> Reply:
    return Reply(body=f"data: {text}\n\ndata: [DONE]\n\n".encode(), content_type="text/event-stream")


SGLANG_ABORT = (
    b'{"text":"","output_ids":[],"meta_info":{"id":"x","finish_reason":{"type":"abort","message":"ill",'
    b'"status_code":500,"err_type":"InternalServerError"},"prompt_tokens":3,"completion_tokens":0}}'
)
VLLM_FAILURE = b'{"request_id":"x","choices":[{"index":0,"token_ids":[],"finish_reason":"error"}]}'
#: name -> (kind of engine, None for all; streamed, None for both; the answer to each generate request).
FAILURES: dict[str, tuple[str | None, bool | None, Script]] = {
    "500": (None, None, Reply(status=500, body=b'{"error":{"message":"EngineCore encountered an issue."}}')),
    "401": (None, None, Reply(status=401)),
    "403": (None, None, Reply(status=403)),
    "404": (None, None, Reply(status=404)),
    "error event": (None, True, _event('{"error":{"message":"ill","code":500}}')),
    "abort in a 200": ("sglang", False, Reply(body=SGLANG_ABORT)),
    "failure in a 200": ("vllm", False, Reply(body=VLLM_FAILURE)),
    "another dialect": (None, None, Reply(body=b'{"foo":1}')),
    "a page": ("vllm", False, Reply(body=b'"foo"', content_type="text/html")),
    "half a reply": (None, None, Half(body=b'{"text":', length=500)),
    "reset before the head": (None, None, Drop()),
    "nonsense": (None, False, Reply(body=b'{"text":')),
}
CASES = [
    pytest.param(kind, stream, script, id=f"{name}-{kind}-{'stream' if stream else 'unary'}")
    for name, (only, streamed, script) in FAILURES.items()
    for kind in KINDS
    for stream in (False, True)
    if only in (None, kind) and streamed in (None, stream)
    if name in ("500", "another dialect") or stream == (kind == "vllm") or None not in (only, streamed)
]


@dataclass
class Patients:
    """A gateway in front of engines of one kind, the first of which can be made to fail."""

    rigged: Rig
    kind: str
    sims: list[SimServer]

    @property
    def ill(self) -> Worker:
        return self.rigged.app.fleet.workers[0]

    async def one(self, stream: bool = False) -> bool:
        """Send one request; True if its reply was good."""
        try:
            reply = await self.rigged.client.post(KINDS[self.kind], json=body_of(self.kind, 2, stream))
        except httpx.HTTPError:
            return False
        failed = any(word in reply.content for word in (b'"error"', b'"abort"', b'"foo"'))
        return reply.status_code == 200 and not failed


@asynccontextmanager
async def patients(kind: str, workers: int) -> AsyncIterator[Patients]:
    async with AsyncExitStack() as stack:
        config = SimConfig(token_delay=DURATION / 2, fast_health=True)
        sims = [await stack.enter_async_context(SimServer(kind, config)) for _ in range(workers)]
        rigged = await stack.enter_async_context(rig(*(sim.url for sim in sims), probe_interval_secs=5))
        yield Patients(rigged, kind, sims)


@pytest.mark.parametrize(("kind", "stream", "script"), CASES)
async def test_outlier_is_set_aside_and_never_dead_whatever_it_answers(
    kind: str, stream: bool, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor for its trial requests, and not by its probes, of half a minute."""
    caplog.set_level(logging.INFO, "gateway.fleet")
    async with patients(kind, workers=2) as of:
        warm_up = await load(lambda: of.one(stream), requests=3 * MIN_REPLIES, clients=4)
        assert not warm_up[False]
        of.sims[0].behave(script, times=10_000)
        await load(lambda: of.one(stream), requests=8 * MIN_REPLIES, clients=4)
        for _ in range(6):
            # The probe of a vLLM sends something to its generate route, and may notice, too.
            assert of.ill.vitals.on_trial or of.ill.state is WorkerState.JOINING
            await asyncio.sleep(5)
            await of.one(stream)
        assert "-> dead" not in caplog.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_one_failing_engine_of_four_fails_a_twentieth_of_the_requests_at_most(
    kind: str, stream: bool
) -> None:
    async with patients(kind, workers=4) as of:
        await load(lambda: of.one(stream), requests=24)
        of.sims[0].behave(Reply(status=500), times=10_000)
        counts = await load(lambda: of.one(stream), requests=300)
        assert counts[False] <= counts.total() / 20, counts


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_refusal_of_a_request_is_no_failure_of_its_worker(status: int) -> None:
    async with patients("sglang", workers=1) as of:
        of.sims[0].behave(Reply(status=status))
        assert not await of.one()
        assert of.ill.vitals.replies.failed == 0
        assert of.ill.occupancy == 1


@pytest.mark.parametrize("status", [401, 500])
async def test_failed_reply_is_no_sign_of_life(status: int) -> None:
    async with patients("sglang", workers=1) as of:
        await of.one()
        shown = of.ill.vitals.last_reply_at
        of.sims[0].behave(Reply(status=status))
        await asyncio.sleep(1)
        assert not await of.one()
        assert of.ill.vitals.last_reply_at == shown
        assert len(generates(of.sims[0])) == 2
