"""A gateway in front of simulated engines of several kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.fleet.worker import Worker
from gateway.sim import SimConfig, SimServer
from gateway.sim.request_log import Arrival
from tests.support.gateway import Rig, rig


@dataclass
class Fleet:
    gateway: Rig
    sims: tuple[SimServer, ...]

    async def post(self, path: str, **call: Any) -> httpx.Response:
        return await self.gateway.client.post(path, **call)

    def worker(self, number: int = 0) -> Worker:
        found = self.gateway.app.fleet.find(self.sims[number].url)
        assert found is not None
        return found


@asynccontextmanager
async def fleet(*kinds: str, config: SimConfig | None = None, **settings: Any) -> AsyncIterator[Fleet]:
    """A gateway in front of simulated engines of these kinds."""
    async with AsyncExitStack() as stack:
        sims = [
            await stack.enter_async_context(SimServer(kind, config or SimConfig(dev_mode=True)))
            for kind in kinds
        ]
        gateway = await stack.enter_async_context(rig(*(sim.url for sim in sims), **settings))
        yield Fleet(gateway, tuple(sims))


def called(sim: SimServer, path: str) -> list[Arrival]:
    """The calls of ``path`` that the engine got."""
    return [each for each in sim.all_requests if each.target.partition(b"?")[0] == path.encode()]


def states(of: Fleet) -> list[str]:
    return [worker.state.value for worker in of.gateway.app.fleet.workers]
