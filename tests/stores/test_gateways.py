"""Gateway processes that share one fleet through a store, and their requests during an outage of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from gateway.sim import SimConfig, SimServer
from tests.stores.etcd.cluster import Member
from tests.support.gateway import eventually, generates
from tests.support.processes import free_port, spawned

REQUEST: dict[str, object] = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}


class Gateway:
    """A running gateway, as its clients see it."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.url = url
        self._client = client

    async def workers(self) -> dict[str, str]:
        """Return the state of each worker by URL."""
        listed = (await self._client.get(f"{self.url}/workers")).json()["workers"]
        return {worker["url"]: worker["state"] for worker in listed}

    async def lists(self, *urls: str, states: Sequence[str] = ()) -> None:
        """Wait until exactly these are the workers, or these their states."""

        async def listed() -> bool:
            workers = await self.workers()
            return [*workers.values()] == [*states] if states else set(workers) == set(urls)

        await eventually(listed)

    async def has(self, *states: str) -> None:
        await self.lists(states=states)

    async def post(self, path: str, **body: object) -> int:
        return (await self._client.post(f"{self.url}{path}", json=body)).status_code

    async def generate(self) -> int:
        return await self.post("/generate", **REQUEST)

    async def store_healthy(self) -> bool:
        lines = (await self._client.get(f"{self.url}/metrics")).text.splitlines()
        return "dynamo_frontend_store_healthy 1" in lines

    async def answers(self) -> bool:
        with suppress(httpx.TransportError):
            return (await self._client.get(f"{self.url}/live")).status_code == 200
        return False


@asynccontextmanager
async def gateways(count: int, variables: Mapping[str, str]) -> AsyncIterator[list[Gateway]]:
    """``count`` gateways without any worker of their own."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, verify=False, timeout=20))
        found = []
        for _ in range(count):
            port = str(free_port())
            command = ("gateway", "serve", "--host", "127.0.0.1", "--port", port)
            await stack.enter_async_context(
                spawned(*command, variables=variables, output=asyncio.subprocess.DEVNULL)
            )
            found.append(Gateway(f"http://127.0.0.1:{port}", client))
        for gateway in found:
            await eventually(gateway.answers, 60)
        yield found


def etcd_at(member: Member) -> dict[str, str]:
    return {"DYN_DISCOVERY_BACKEND": "etcd", "DYN_ETCD_ENDPOINTS": member.url}


@pytest.fixture(params=["etcd", "file"])
def variables(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Environment variables of gateways that share a store."""
    if request.param == "etcd":
        return etcd_at(request.getfixturevalue("member"))
    return {"DYN_DISCOVERY_BACKEND": "file", "DYN_DISCOVERY_FILE": str(tmp_path / "workers.json")}


async def test_two_gateways_on_one_store_see_the_same_fleet(variables: Mapping[str, str]) -> None:
    """Each sees what the other registers or removes; so does a gateway that starts after both have ended."""
    async with SimServer("sglang", SimConfig()) as one, SimServer("sglang", SimConfig()) as two:
        async with gateways(2, variables) as (here, there):
            assert await here.post("/workers", url=one.url) == 202
            await there.lists(one.url)
            assert await there.post("/workers", url=two.url) == 202
            for gateway in (here, there):
                await gateway.lists(one.url, two.url)
                await gateway.has("ready", "ready")
                assert await gateway.generate() == 200
            assert await here.post(f"/remove_worker?url={one.url}") == 200
            await there.lists(two.url)
        async with gateways(1, variables) as (later,):
            await later.lists(two.url)


async def test_gateways_on_one_store_share_pauses_and_cordons(variables: Mapping[str, str]) -> None:
    """The store has no record of the workers: each gateway is started with them.

    A gateway that starts later knows the pauses before it sends any request.
    """
    async with SimServer("sglang", SimConfig()) as one, SimServer("sglang", SimConfig()) as two:
        given = {**variables, "DYN_WORKER": f"{one.url},{two.url}"}
        async with gateways(2, given) as (here, there):
            for gateway in (here, there):
                await gateway.has("ready", "ready")
            assert await here.post("/pause_generation") == 200
            assert set((await here.workers()).values()) == {"held"}
            await there.has("held", "held")
            assert await here.post(f"/workers/{two.url}/cordon") == 200
            async with gateways(1, given) as (later,):
                await later.has("held", "held")
                assert await later.generate() == 503
                assert not generates(one) and not generates(two)
                assert await later.post("/continue_generation") == 200
                for gateway in (here, there, later):
                    await gateway.has("ready", "held")
                assert await there.post(f"/workers/{two.url}/uncordon") == 200
            for gateway in (here, there):
                await gateway.has("ready", "ready")


async def test_requests_go_on_while_etcd_is_away(member: Member) -> None:
    """No request fails. A registration fails at once, and works again afterwards.

    A pause is effective at once in the gateway that was called, and known to the other once etcd is back.
    OUTAGE_SECONDS=30 makes the outage longer.
    """
    seconds = float(os.environ.get("OUTAGE_SECONDS", "3"))  # noqa: TID251
    loop = asyncio.get_running_loop()
    async with SimServer("sglang", SimConfig()) as sim, gateways(2, etcd_at(member)) as (here, there):
        assert await here.post("/workers", url=sim.url) == 202
        for gateway in (here, there):
            await gateway.has("ready")
        await asyncio.to_thread(member.kill)
        end, served = loop.time() + seconds, 0
        while loop.time() < end:
            assert [await here.generate(), await there.generate()] == [200, 200]
            served += 2
            await asyncio.sleep(0.02)
        assert served >= 20
        assert not await here.store_healthy()
        assert await here.post("/workers", url="http://127.0.0.1:1") == 503
        assert await here.post("/pause_generation") == 200
        assert await here.workers() == {sim.url: "held"}
        assert await there.workers() == {sim.url: "ready"}
        await asyncio.to_thread(member.restart)
        for gateway in (here, there):
            await eventually(gateway.store_healthy)
        await there.has("held")
        assert await there.post("/continue_generation") == 200
        await here.has("ready")
        assert await there.post("/workers", url="http://127.0.0.1:1") == 202
        await here.lists(sim.url, "http://127.0.0.1:1")
