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
from gateway.sim import Reply, SimConfig, SimServer
from gateway.sim.config import SGLANG, VLLM
from tests.support.fleet import called
from tests.support.gateway import Rig, generates, rig, until
from tests.support.generate import KINDS, body_of

pytestmark = pytest.mark.virtual_time

#: Seconds between two probes; the clients of the load; the seconds of a reply, and between two looks of the
#: engine for its end.
INTERVAL, CLIENTS, TOKENS, DELAY, LOOKS = 2.0, 8, 10, 0.1, 5.0
#: Seconds after its last request in which the engine exits: two of its looks.
EXIT_WITHIN = 10.0
HEALTH = {SGLANG: "/ready", VLLM: "/health"}
DONE = "data: [DONE]\n\n"


@asynccontextmanager
async def load(gateway: Rig, kind: str = SGLANG) -> AsyncIterator[Counter[str]]:
    """Send requests, always ``CLIENTS`` at once, half of them as streams; count their statuses and errors."""
    statuses: Counter[str] = Counter()
    over = asyncio.Event()

    async def client(number: int) -> None:
        while not over.is_set():
            stream = number % 2 == 0
            reply = await gateway.client.post(KINDS[kind], json=body_of(kind, TOKENS, stream))
            broken = '"error"' in reply.text or reply.text.endswith(DONE) is not stream
            statuses["error" if reply.is_success and broken else str(reply.status_code)] += 1
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
            assert set(statuses) == {"200"}
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
            assert set(statuses) == ({"200"} if queue else {"200", "503"})


async def takes_no_more(sim: SimServer, how: str) -> None:
    if how == "SIGTERM":
        return sim.terminate()
    if how == "503":
        return sim.behave(Reply(status=503), times=1000, path=HEALTH[sim.kind])
    async with httpx.AsyncClient(base_url=sim.url, trust_env=False) as engine:
        assert (await engine.post(how)).status_code == 200


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (SGLANG, "503"),
        (VLLM, "503"),
        (VLLM, "SIGTERM"),
        (VLLM, "/pause?mode=keep"),
        (VLLM, "/pause?mode=wait"),
        (VLLM, "/sleep?level=1"),
    ],
)
async def test_worker_that_takes_no_more_gets_nothing_after_one_probe_and_finishes_what_it_has(
    kind: str, how: str
) -> None:
    """However many of its requests succeed."""
    config = SimConfig(token_delay=DELAY, shutdown_timeout=60)
    async with SimServer(kind, config) as sim, SimServer(kind, config) as other:
        async with rig(sim.url, other.url, probe_interval_secs=INTERVAL) as gateway:
            worker = gateway.app.fleet.workers[0]
            async with load(gateway, kind) as statuses:
                await asyncio.sleep(3)
                began, probed = time.monotonic(), len(called(sim, HEALTH[kind]))
                await takes_no_more(sim, how)
                await until(lambda: worker.state is not WorkerState.READY, 1.1 * INTERVAL)
                assert len(called(sim, HEALTH[kind])) <= probed + 1
                await asyncio.sleep(3 * INTERVAL)
                assert last_arrival(sim) <= began + 1.1 * INTERVAL
                if "keep" in how:  # its requests go on when it is resumed
                    await takes_no_more(sim, "/resume")
            refused = statuses.total() - statuses["200"]
            assert refused <= CLIENTS if how in ("/pause?mode=wait", "/sleep?level=1") else not refused
            assert sum(arrival.finished is None for arrival in generates(sim)) <= refused
