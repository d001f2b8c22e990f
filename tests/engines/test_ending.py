"""A real SGLang that gets a SIGTERM under load: no request fails, and nothing new keeps it from its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import httpx
import pytest

from gateway.sim import SimServer
from scripts.engines import paths, servers
from tests.clients.site import engines as simulated
from tests.clients.site import gateway_process, seen, site_at
from tests.engines.conftest import PATHS, require
from tests.engines.front import Front, events
from tests.support.gateway import eventually

#: Seconds between two probes, of which each is spread by a tenth, and until the answer of a busy engine acts.
INTERVAL, REACTION = 1.0, 0.5
#: Seconds after its last request in which the engine exits: it looks every 5 s for requests that are left.
EXIT_WITHIN = 10.0
CLIENTS, TOKENS = 4, 16


@dataclass
class Load:
    """The requests of the load by id: when each began and ended, and the status where it was not 200."""

    times: dict[str, tuple[float, float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def elsewhere(self, sim: SimServer) -> list[tuple[float, float]]:
        """Return the times of the requests that ``sim`` did not receive."""
        received = {json.loads(arrival.body)["rid"] for arrival in seen(sim)}
        return [times for name, times in self.times.items() if name not in received]


@pytest.fixture
def ending() -> Iterator[servers.Server]:
    """A real SGLang which the test may end."""
    require("sglang-ending")
    server = servers.start("sglang-ending")
    try:
        servers.wait_ready(server)
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def load(client: httpx.AsyncClient, front: Front) -> AsyncIterator[Load]:
    """Send short requests, always ``CLIENTS`` at once, half of them as streams."""
    found, over = Load(), asyncio.Event()

    async def ask(stream: bool) -> None:
        while not over.is_set():
            name, began = uuid4().hex, time.monotonic()
            reply = await client.post(
                front.through + front.path, json=front.body(name, TOKENS, stream=stream)
            )
            found.times[name] = began, time.monotonic()
            if reply.status_code != 200:
                found.failures.append(reply.text)
            else:
                last = events(reply.content)[-1] if stream else reply.json()
                assert front.ends(last) == ["length"]
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(ask(number % 2 == 0))
        yield found
        over.set()


async def test_sglang_that_ends_beside_another_worker_gets_nothing_after_one_probe_interval(
    client: httpx.AsyncClient, ending: servers.Server
) -> None:
    async def exited() -> bool:
        return not ending.alive

    flags = ("--probe-interval-secs", str(INTERVAL))
    with gateway_process(paths.runs() / "gateway-ending.log", *flags) as url:
        async with site_at(url) as site, simulated("sglang", 1, token_delay=0.01) as [sim]:
            front = Front("sglang", PATHS["sglang"], ending.url, url)
            await site.serve(front, sim)
            async with load(client, front) as found:
                await asyncio.sleep(3)
                ended = time.monotonic()
                os.kill(ending.pid, signal.SIGTERM)
                await eventually(exited, 3 * EXIT_WITHIN)
                exit_time = time.monotonic()
                await asyncio.sleep(2)
            assert (await site.workers())[ending.url]["state"] in ("dead", "joining")
            at_engine = found.elsewhere(sim)
    assert found.failures == []
    assert sum(began < ended for began, _ in at_engine) > CLIENTS, "the engine had no load"
    assert max(began for began, _ in at_engine) - ended <= 1.1 * INTERVAL + REACTION
    assert exit_time - max(end for _, end in at_engine) < EXIT_WITHIN
