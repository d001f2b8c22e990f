"""The states of workers as a client of the gateway meets them, in front of real (simulated) engines."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import httpx
import pytest

from gateway.fleet.states import WorkerState
from gateway.sim import SimConfig, SimServer
from tests.support.gateway import Rig, generates, rig, until
from tests.support.generate import KINDS, body_of


async def generate(rigged: Rig, kind: str, tokens: int = 2) -> httpx.Response:
    return await rigged.client.post(KINDS[kind], json=body_of(kind, tokens))


@pytest.mark.parametrize("kind", KINDS)
async def test_full_worker_is_passed_over_while_another_is_ready(kind: str) -> None:
    """Its refusal goes to the client unchanged, and makes it busy, not dead."""
    config = SimConfig(max_running=1, max_queued=1, token_delay=0.02)
    async with SimServer(kind, config) as full, rig(full.url) as rigged:
        (worker,) = rigged.app.fleet.workers
        running = [asyncio.ensure_future(generate(rigged, kind, 100)) for _ in range(2)]
        await until(lambda: len(generates(full)) == 2)
        refused = await generate(rigged, kind)
        assert refused.status_code in (429, 503), refused.text
        assert (worker.state, worker.reason) == (WorkerState.BUSY, f"it answered {refused.status_code}")
        async with SimServer(kind, SimConfig()) as free:
            await rigged.client.post("/workers", json={"url": free.url})
            await until(lambda: rigged.app.fleet.workers[1].state is WorkerState.READY)
            worker.vitals.busy_until = float("inf")
            for _ in range(4):
                assert (await generate(rigged, kind)).status_code == 200
            assert len(generates(free)) == 4
        for call in running:
            call.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_engine_that_was_paused_directly_answers_later_and_is_not_dead() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, probe_interval_secs=0.02) as rigged:
        (worker,) = rigged.app.fleet.workers
        async with httpx.AsyncClient(base_url=sim.url, trust_env=False) as engine:
            await engine.post("/pause_generation", json={"mode": "in_place"})
            await until(lambda: worker.state is WorkerState.BUSY)
            waiting = asyncio.ensure_future(generate(rigged, "sglang"))
            await until(lambda: worker.in_flight == 1)
            await engine.post("/continue_generation", json={})
            assert (await waiting).status_code == 200
            await until(lambda: worker.state is WorkerState.READY)


async def test_every_transition_is_counted_in_the_metrics() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as rigged:
        await rigged.client.post(f"/workers/{sim.url}/cordon")
        await rigged.client.delete(f"/workers/{sim.url}")
        text = (await rigged.client.get("/metrics")).text
    for before, after in pairwise(("joining", "ready", "held", "draining", "gone")):
        assert f'_worker_transitions_total{{from="{before}",to="{after}"}} 1\n' in text
    assert '_workers{state="ready"} 0\n' in text
