"""Workers that fail while others do not: what they are sent, and when they are trusted again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.sim import SimConfig, SimServer
from gateway.sim.script import Drop, Half, Reply, Script
from tests.support.gateway import Rig, generates, rig, until
from tests.support.generate import KINDS, body_of

pytestmark = pytest.mark.virtual_time

#: Seconds that a good reply takes.
GOOD = 0.1


def _event(text: str) -> Reply:
    return Reply(body=f"data: {text}\n\ndata: [DONE]\n\n".encode(), content_type="text/event-stream")


SGLANG_ABORT = (
    b'{"text":"","output_ids":[],"meta_info":{"id":"x","finish_reason":{"type":"abort","message":"ill",'
    b'"status_code":500,"err_type":"InternalServerError"},"prompt_tokens":3,"completion_tokens":0}}'
)
#: name -> (kind of engine, None for all; streamed, None for both; the answer to each generate request).
FAILURES: dict[str, tuple[str | None, bool | None, Script]] = {
    "500": (None, None, Reply(status=500, body=b'{"error":{"message":"EngineCore encountered an issue."}}')),
    "401": (None, None, Reply(status=401)),
    "403": (None, None, Reply(status=403)),
    "404": (None, None, Reply(status=404)),
    "error event": (
        None,
        True,
        _event('{"error":{"message":"ill","code":500}}'),
    ),
    "abort in a 200": ("sglang", False, Reply(body=SGLANG_ABORT)),
    "another dialect": (None, None, Reply(body=b'{"foo":1}')),
    "a page": ("vllm", False, Reply(body=b'"foo"', content_type="text/html")),
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
    """A gateway in front of four engines of one kind, the first of which can be made to fail."""

    rigged: Rig
    kind: str
    sims: list[SimServer]

    @property
    def ill(self) -> Worker:
        return self.rigged.app.fleet.workers[0]

    def infect(self, script: Script, *sims: SimServer) -> None:
        for sim in sims or self.sims[:1]:
            sim.behave(script, times=100_000)

    def heal(self) -> None:
        for sim in self.sims:
            sim.engine.scripts_for(KINDS[self.kind].encode()).clear()

    async def one(self, stream: bool = False, session: str | None = None) -> bool:
        """Send one request; True if its reply was good."""
        body = body_of(self.kind, 2, stream)
        headers = {} if session is None else {"x-session-id": session}
        try:
            reply = await self.rigged.client.post(KINDS[self.kind], json=body, headers=headers)
        except httpx.HTTPError:
            return False
        failed = any(word in reply.content for word in (b'"error"', b'"abort"', b'"foo"'))
        return reply.status_code == 200 and not failed

    async def load(
        self, seconds: float = 1e6, *, requests: int = 10**6, clients: int = 8, stream: bool = False
    ) -> Counter[bool]:
        """Send ``requests``, or for ``seconds``, from ``clients``; each waits for 50 ms after a failure."""
        counts: Counter[bool] = Counter()
        loop = asyncio.get_running_loop()
        until_time = loop.time() + seconds

        async def client() -> None:
            while loop.time() < until_time and counts.total() < requests:
                good = await self.one(stream)
                counts[good] += 1
                if not good:
                    await asyncio.sleep(0.05)

        await asyncio.gather(*(client() for _ in range(clients)))
        return counts


@asynccontextmanager
async def patients(kind: str, *, workers: int = 4, **settings: Any) -> AsyncIterator[Patients]:
    async with AsyncExitStack() as stack:
        config = SimConfig(prefill_base=GOOD, fast_health=True)
        sims = [await stack.enter_async_context(SimServer(kind, config)) for _ in range(workers)]
        rigged = await stack.enter_async_context(rig(*(sim.url for sim in sims), **settings))
        yield Patients(rigged, kind, sims)


@pytest.mark.parametrize(("kind", "stream", "script"), CASES)
async def test_one_failing_worker_of_four_fails_a_twentieth_of_the_requests_at_most(
    kind: str, stream: bool, script: Script
) -> None:
    async with patients(kind) as of:
        assert (await of.load(1, stream=stream))[False] == 0
        of.infect(script)
        counts = await of.load(requests=300, stream=stream)
        assert counts[False] <= counts.total() / 20, counts
        assert of.ill.on_trial or of.ill.state is not WorkerState.READY  # a probe of vLLM may notice, too
        assert {worker.state for worker in of.rigged.app.fleet.workers[1:]} == {WorkerState.READY}


@pytest.mark.parametrize("mode", ["least_in_flight", "least_loaded"])
async def test_worker_that_fails_from_its_first_request_draws_no_more_than_its_share(mode: str) -> None:
    async with patients("sglang", router_mode=mode) as of:
        of.infect(Reply(status=500))
        counts = await of.load(requests=300)
        assert counts[False] <= counts.total() / 20, counts


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_refusals_of_requests_take_no_worker_out_and_attract_nothing(status: int) -> None:
    """Its share is a quarter; a little more is left for the time before its good replies are known."""
    async with patients("sglang") as of:
        await of.load(1)
        of.infect(Reply(status=status))
        counts = await of.load(4)
        assert of.ill.state is WorkerState.READY
        assert counts[False] <= 0.3 * counts.total(), counts


@pytest.mark.parametrize("status", [400, 500])
async def test_failures_that_all_workers_have_alike_take_no_worker_out(status: int) -> None:
    async with patients("sglang") as of:
        await of.load(1)
        of.infect(Reply(status=status), *of.sims)
        await of.load(3)
        assert {worker.state for worker in of.rigged.app.fleet.workers} == {WorkerState.READY}


async def test_only_worker_is_never_ejected() -> None:
    async with patients("sglang", workers=1) as of:
        await of.load(1)
        of.infect(Reply(status=500))
        await of.load(2)
        assert of.ill.state is WorkerState.READY


async def test_ejected_worker_is_tried_with_one_request_after_growing_pauses() -> None:
    async with patients("sglang") as of:
        await of.load(1)
        of.infect(Reply(status=500))
        await of.load(1)
        before = len(generates(of.sims[0]))
        await of.load(14, clients=2)
        # Pauses of 1, 2, 4 and 8 seconds begin in these 14; a trial request ends each.
        assert 3 <= len(generates(of.sims[0])) - before <= 4


async def test_ejected_worker_that_has_recovered_gets_its_share_again() -> None:
    async with patients("sglang") as of:
        await of.load(1)
        of.infect(Reply(status=500))
        await of.load(2)
        of.heal()
        await until(lambda: of.ill.state is WorkerState.READY)
        before = [len(generates(sim)) for sim in of.sims]
        counts = await of.load(2)
        gained = [len(generates(sim)) - start for sim, start in zip(of.sims, before, strict=True)]
        assert counts[False] == 0
        assert gained[0] >= counts.total() / 6
        assert not of.ill.on_trial


async def test_sessions_of_a_failing_worker_move() -> None:
    async with patients("sglang") as of:
        await of.load(1)
        of.infect(Reply(status=500))
        await of.load(2)
        sessions = [f"session-{number}" for number in range(24)]
        good = [await of.one(session=session) for session in sessions]
        assert good.count(False) <= 1  # the trial request of one of them


async def test_one_session_that_fails_everywhere_takes_no_worker_out() -> None:
    async with patients("sglang", workers=2) as of:
        await of.load(1)
        for number in range(30):
            of.infect(Reply(status=500), *of.sims)
            assert not await of.one(session="evil")
            of.heal()
            assert await of.one(session=f"other-{number}")
        assert {worker.state for worker in of.rigged.app.fleet.workers} == {WorkerState.READY}


BREAKS: dict[str, Script] = {
    "half a reply": Half(body=b'{"text":', length=500),
    "reset before the head": Drop(),
    "nonsense": Reply(body=b'{"text":'),
}


@pytest.mark.parametrize("broken", BREAKS)
async def test_worker_that_breaks_each_reply_and_passes_each_probe_is_tried_after_growing_pauses(
    broken: str,
) -> None:
    async with patients("sglang") as of:
        await of.load(1)
        of.infect(BREAKS[broken])
        counts = await of.load(4)
        assert counts[False] <= counts.total() / 50, counts


async def test_full_worker_that_names_no_time_is_asked_after_growing_pauses() -> None:
    async with patients("vllm") as of:
        await of.load(1)
        of.infect(Reply(status=503))
        counts = await of.load(20, clients=4)
        assert counts[False] <= 10, counts


@pytest.mark.parametrize("status", [401, 500])
async def test_failed_reply_is_no_sign_of_life(status: int) -> None:
    async with patients("sglang", workers=1) as of:
        await of.one()
        shown = of.ill.vitals.last_reply_at
        of.infect(Reply(status=status))
        await of.load(1, clients=1)
        assert of.ill.vitals.last_reply_at == shown


async def test_places_of_failed_replies_are_given_up() -> None:
    async with patients("sglang") as of:
        await of.load(1)
        of.infect(Reply(status=400))
        await of.one()
        await of.load(1)
        await asyncio.sleep(1)
        workers = of.rigged.app.fleet.workers
        assert [(worker.in_flight, worker.occupancy) for worker in workers] == [(0, 0)] * 4
