"""A gateway that is its own worker, directly or by way of another one."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

import pytest

from gateway.fleet.states import WorkerState
from gateway.sim import SimConfig, SimServer
from tests.support.fleet import called
from tests.support.gateway import Rig, generates, rig, until
from tests.support.generate import KINDS, body_of

LOOPED = "it is this gateway, or leads back to it"


async def register(gateway: Rig, url: str) -> None:
    assert (await gateway.client.post("/workers", json={"url": url})).status_code == 202


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_gateway_among_its_own_workers_is_kept_out_and_asks_itself_no_further(host: str) -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, probe_interval_secs=0.05) as gateway:
        await register(gateway, gateway.url.replace("127.0.0.1", host))
        itself = gateway.app.fleet.workers[1]
        await until(lambda: itself.reason == LOOPED)
        assert itself.state is WorkerState.JOINING
        before = open_files()
        for _ in range(20):
            assert (await gateway.client.post("/generate", json=body_of("sglang"))).status_code == 200
            assert (await gateway.client.post("/flush_cache")).status_code == 200
        assert open_files() <= before + 8
        assert len(generates(sim)) == 20
        assert sum(arrival.target == b"/flush_cache" for arrival in sim.all_requests) == 20


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", KINDS)
async def test_ring_of_two_gateways_ends_and_each_serves_from_its_own_worker(kind: str) -> None:
    """A control call reaches each engine once, and its own mark is a 508 in the other gateway's summary."""
    reset = "/flush_cache" if kind == "sglang" else "/reset_prefix_cache"
    async with AsyncExitStack() as stack:
        sims = [await stack.enter_async_context(SimServer(kind, SimConfig())) for _ in range(2)]
        one, two = [await stack.enter_async_context(rig(sim.url, probe_interval_secs=1)) for sim in sims]
        await register(one, two.url)
        await register(two, one.url)
        await until(lambda: one.app.fleet.workers[1].usable and two.app.fleet.workers[1].usable)

        async def use(gateway: Rig, other: Rig) -> None:
            replies = [await gateway.client.post(KINDS[kind], json=body_of(kind)) for _ in range(10)]
            # As the other one is taken for a worker, a request may come back to its sender, which refuses.
            assert {reply.status_code for reply in replies} <= {200, 508}
            before = [len(called(sim, reset)) for sim in sims]
            reply = await gateway.client.post(reset)
            assert [len(called(sim, reset)) for sim in sims] == [count + 1 for count in before]
            own, others = reply.json()["results"]
            assert (reply.status_code, own["status"]) == (502, 200)
            assert (others["worker"], others["status"]) == (other.url, 502)
            theirs, looped = others["body"]["results"]
            assert (theirs["status"], looped["worker"], looped["status"]) == (200, gateway.url, 508)

        files = []
        for _ in range(4):
            await use(one, two)
            await use(two, one)
            await asyncio.sleep(20)  # no connection is kept for so long
            files.append(open_files())
        assert max(files[1:]) <= files[0] + 4


async def test_chain_of_gateways_works() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as inner, rig(inner.url) as outer:
        await until(lambda: outer.app.fleet.workers[0].state is WorkerState.READY)
        assert (await outer.client.post("/generate", json=body_of("sglang"))).status_code == 200
        (arrival,) = generates(sim)
        assert len([value for name, value in arrival.headers if name.lower() == b"via"]) == 2


@pytest.mark.parametrize("path", ["/generate", "/flush_cache", "/workers", "/v1/models"])
async def test_own_mark_is_refused_with_508_on_every_route(path: str) -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        await gateway.client.post("/generate", json=body_of("sglang"))
        (arrival,) = generates(sim)
        mark = next(value.decode() for name, value in arrival.headers if name.lower() == b"via")
        # Any bytes may stand beside it: of a client's own line, which a proxy has joined with this one.
        for value in (mark, f"1.0 proxy, {mark}", f"1.1 caf\xe9, {mark}", f"{mark} (\xff)"):
            reply = await gateway.client.post(path, json={}, headers={b"via": value.encode("latin-1")})
            assert reply.status_code == 508, reply.text
            assert "has passed through this gateway before" in reply.text
        other = {"via": "1.1 tito-gateway-0000000000000000"}
        assert (await gateway.client.get("/workers", headers=other)).status_code == 200
        assert len(generates(sim)) == 1
