"""A gateway whose engines are pods, which are added, removed, and kept during an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from gateway.sim import SimConfig, SimServer
from tests.stores.kubernetes.conftest import Site
from tests.stores.kubernetes.things import Object, pod
from tests.support.gateway import Rig, arrived, eventually, generates, rig

SLOW = SimConfig(model="tiny", token_delay=0.02)


def engine_pod(name: str, sim: SimServer, **more: Any) -> Object:
    parts = urlsplit(sim.url)
    return pod(name, str(parts.hostname), port=str(parts.port), **more)


@asynccontextmanager
async def gateway_of(site: Site) -> AsyncIterator[Rig]:
    async with rig(
        discovery_backend="kubernetes",
        kubernetes_selector="app=engine",
        kubernetes_namespace="default",
        kubernetes_api_url=site.server.url,
        kubernetes_token_file=str(site.token),
        kubernetes_ca_file=str(site.certificates),
    ) as gateway:
        yield gateway


async def ready_workers_are(gateway: Rig, *sims: SimServer) -> None:
    """Wait until exactly these workers are ready."""

    async def reached() -> bool:
        workers = (await gateway.client.get("/workers")).json()["workers"]
        return [each["url"] for each in workers if each["state"] == "ready"] == [sim.url for sim in sims]

    await eventually(reached)


async def generate(gateway: Rig, tokens: int = 2) -> httpx.Response:
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": tokens}}
    return await gateway.client.post("/generate", json=body)


async def test_pods_join_and_leave_while_requests_go_on(site: Site) -> None:
    """A pod that is being deleted finishes its requests and gets no new ones.

    The fleet stays as it is known while the API server is away, and is updated afterwards.
    """
    async with SimServer("sglang", SLOW) as first, SimServer("sglang", SLOW) as second:
        site.cluster.put("pods", engine_pod("a", first))
        async with gateway_of(site) as gateway:
            await ready_workers_are(gateway, first)
            running = asyncio.ensure_future(generate(gateway, tokens=40))
            await arrived(1, first)
            site.cluster.put("pods", engine_pod("b", second))
            await ready_workers_are(gateway, first, second)
            site.cluster.put("pods", engine_pod("a", first, leaving=True))
            await ready_workers_are(gateway, second)
            assert not running.done()
            assert [(await generate(gateway)).status_code for _ in range(3)] == [200] * 3
            assert (await running).status_code == 200
            assert (len(generates(first)), len(generates(second))) == (1, 3)
            await site.server.stop()
            site.cluster.put("pods", engine_pod("a", first))
            site.cluster.delete("pods", "b")
            assert [(await generate(gateway)).status_code for _ in range(3)] == [200] * 3
            assert len(generates(second)) == 6
            await site.server.start()
            await ready_workers_are(gateway, first)
