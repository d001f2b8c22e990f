"""Engines that end under load: no request fails, and nothing new keeps them from their end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.fleet.states import WorkerState
from gateway.sim import SimConfig, SimServer
from gateway.sim.config import SGLANG
from tests.support.gateway import Rig, generates, rig, until
from tests.support.generate import KINDS, body_of

pytestmark = pytest.mark.virtual_time

#: Seconds between two probes; the clients of the load; the seconds of a reply, and between two looks of the
#: engine for its end.
INTERVAL, CLIENTS, TOKENS, DELAY, LOOKS = 2.0, 8, 10, 0.1, 5.0
#: Seconds after its last request in which the engine exits: two of its looks.
EXIT_WITHIN = 10.0
DONE = "data: [DONE]\n\n"


@asynccontextmanager
async def load(gateway: Rig) -> AsyncIterator[Counter[int]]:
    """Send requests, always ``CLIENTS`` at once, half of them as streams; count their statuses."""
    statuses: Counter[int] = Counter()
    over = asyncio.Event()

    async def client(number: int) -> None:
        while not over.is_set():
            stream = number % 2 == 0
            reply = await gateway.client.post(KINDS[SGLANG], json=body_of(SGLANG, TOKENS, stream))
            statuses[reply.status_code] += 1
            if reply.status_code == 200:
                assert "error" not in reply.text and reply.text.endswith(DONE) is stream
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(client(number))
        yield statuses
        over.set()


def engine() -> SimServer:
    return SimServer(SGLANG, SimConfig(token_delay=DELAY, drain_poll=LOOKS))


def last_arrival(sim: SimServer) -> float:
    return max(arrival.at for arrival in generates(sim))


async def exits(sim: SimServer) -> float:
    """Return after how many seconds the last request came to ``sim``, which gets a SIGTERM and exits."""
    began = time.monotonic()
    sim.terminate()
    await sim.exited()
    last_end = max(arrival.finished or 0.0 for arrival in generates(sim))
    assert time.monotonic() - last_end < EXIT_WITHIN
    return last_arrival(sim) - began


async def test_engine_that_ends_beside_another_one_gets_nothing_after_one_probe_interval() -> None:
    async with engine() as sim, engine() as other:
        async with rig(sim.url, other.url, probe_interval_secs=INTERVAL) as gateway:
            async with load(gateway) as statuses:
                await asyncio.sleep(3)
                assert await exits(sim) <= 1.1 * INTERVAL
                await asyncio.sleep(3)
            assert set(statuses) == {200}
            assert gateway.app.fleet.workers[0].state in (WorkerState.DEAD, WorkerState.JOINING)


@pytest.mark.parametrize("queue", [60, 0])
async def test_engine_that_ends_alone_leaves_its_requests_to_the_queue(queue: float) -> None:
    """Without a queue they are refused with 503 by the gateway. A new engine at the same address serves."""
    async with engine() as sim:
        async with rig(sim.url, probe_interval_secs=INTERVAL, queue_seconds=queue) as gateway:
            async with load(gateway) as statuses:
                await asyncio.sleep(3)
                assert await exits(sim) <= 1.1 * INTERVAL + 2
                await asyncio.sleep(1)
                await sim.start()
                await until(lambda: gateway.app.fleet.workers[0].state is WorkerState.READY)
                await until(lambda: len(generates(sim)) > 20)
            assert set(statuses) == ({200} if queue else {200, 503})


@pytest.mark.virtual_time
@pytest.mark.parametrize("call", ["/pause?mode=keep", "/sleep?level=1"])
async def test_vllm_that_is_paused_directly_is_busy_within_one_interval(call: str) -> None:
    async with SimServer("vllm", SimConfig()) as sim, rig(sim.url, probe_interval_secs=2) as gateway:
        (worker,) = gateway.app.fleet.workers
        await asyncio.sleep(5)
        async with httpx.AsyncClient(base_url=sim.url, trust_env=False) as engine:
            assert (await engine.post(call)).status_code == 200
        await until(lambda: worker.state is WorkerState.BUSY, 2.5)
