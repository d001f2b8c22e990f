"""Shutdown that no client notices: delays before a drain, and rolling restarts under load."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from gateway.sim import Pace, Reply, Silence, SimConfig, SimServer
from tests.prefork.running import several
from tests.support.gateway import RawClient, arrived, eventually, generates, sse, until
from tests.support.generate import body_of
from tests.support.processes import PATIENCE, free_port
from tests.support.served import Served, served

#: Each starts several gateways, which takes long on a machine that is busy with other tests.
pytestmark = pytest.mark.timeout(240)

SLOW = SimConfig(token_delay=0.02)
DELAY = "DYN_HTTP_DRAIN_DELAY_SECS"


async def queued_at_least(gateway: Served, least: int) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:

        async def shown() -> bool:
            text = (await client.get(gateway.url + "/metrics")).text
            return int(text.partition("\ndynamo_frontend_held_requests ")[2].split()[0]) >= least

        await eventually(shown)


async def status(client: httpx.AsyncClient, url: str, path: str) -> int:
    """Of a GET; 0 if nobody answers."""
    try:
        return (await client.get(url + path)).status_code
    except httpx.TransportError:
        return 0


async def not_ready(client: httpx.AsyncClient, gateway: Served) -> None:
    async def answered() -> bool:
        return await status(client, gateway.url, "/ready") == 503

    await eventually(answered)


async def refusing(client: httpx.AsyncClient, gateway: Served) -> None:
    async def answered() -> bool:
        answer = await client.post(gateway.url + "/generate", json=body_of("sglang"))
        return (answer.status_code, answer.headers.get("connection")) == (503, "close")

    await eventually(answered)


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_requests_are_taken_for_a_while_after_readiness_is_gone(processes: str) -> None:
    """With a ``Connection: close``, so that a pool goes elsewhere; then they are refused, then it is over."""
    variables = {DELAY: "1.5", "DYN_HTTP_PROCESSES": processes}
    async with SimServer("sglang", SimConfig()) as sim, served(sim.url, **variables) as gateway:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            sim.behave(Pace(stall_after=1))
            stays = await RawClient.connect(gateway.port)
            stays.request("/generate", json.dumps(body_of("sglang", 5, True)).encode())
            await stays.head()
            reply = await client.post(gateway.url + "/generate", json=body_of("sglang"))
            assert "connection" not in reply.headers
            gateway.process.send_signal(signal.SIGTERM)
            await not_ready(client, gateway)
            assert await status(client, gateway.url, "/health") == 503
            assert await status(client, gateway.url, "/live") == 200
            reply = await client.post(gateway.url + "/generate", json=body_of("sglang"))
            assert (reply.status_code, reply.headers["connection"]) == (200, "close")
            await refusing(client, gateway)
            stays.leave()
            assert await asyncio.wait_for(gateway.process.wait(), PATIENCE) == 0


@pytest.mark.parametrize("waits_for", ["room", "worker"])
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_request_that_waits_in_line_at_the_signal_is_served(processes: str, waits_for: str) -> None:
    """It was taken, so it has the grace time, too. Who comes after the signal is refused, and the gateway
    ends once the last one in line was served."""
    variables = {"DYN_HTTP_PROCESSES": processes}
    if waits_for == "room":
        variables["DYN_MAX_IN_FLIGHT_PER_WORKER"] = processes  # shared out: one for each
    else:
        variables["DYN_QUEUE_SECONDS"] = "60"
    asks = json.dumps(body_of("sglang", 3)).encode()
    config = SimConfig(port=free_port())
    async with SimServer("sglang", config) as sim, served(sim.url, **variables) as gateway:
        if waits_for == "room":
            sim.behave(Pace(prefill_base=3.0), times=int(processes))
        else:
            await sim.kill()
        # The kernel chooses a process for each, and each process has a line of its own.
        clients = [await RawClient.connect(gateway.port) for _ in range(8)]
        for client in clients:
            client.request("/generate", asks)
        await queued_at_least(gateway, len(clients) - (int(processes) if waits_for == "room" else 0))
        gateway.process.send_signal(signal.SIGTERM)
        async with httpx.AsyncClient(trust_env=False, timeout=30) as other:
            await refusing(other, gateway)
        if waits_for == "worker":
            await sim.start()
        for client in clients:
            assert (await client.head()).startswith(b"HTTP/1.1 200 ")
            client.leave()
        assert await asyncio.wait_for(gateway.process.wait(), PATIENCE) == 0
        assert not sim.aborts


@pytest.mark.parametrize("delay", ["0", "60"])
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_second_signal_ends_the_delay_and_all_else_at_once(processes: str, delay: str) -> None:
    variables = {DELAY: delay, "DYN_HTTP_PROCESSES": processes}
    async with SimServer("sglang", SimConfig()) as sim, served(sim.url, **variables) as gateway:
        sim.behave(Pace(stall_after=1))
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            running = asyncio.ensure_future(
                client.post(gateway.url + "/generate", json=body_of("sglang", 5, True))
            )
            await arrived(1, sim)
            gateway.process.send_signal(signal.SIGTERM)
            await not_ready(client, gateway)
            gateway.process.send_signal(signal.SIGTERM)
            assert "error" in sse((await running).content)[-1]
        assert await asyncio.wait_for(gateway.process.wait(), PATIENCE) == 0
        await sim.abort_called(1)


CONTROL = "/update_weights_from_disk"


@pytest.mark.parametrize("grace", ["30", "0.5"])
@pytest.mark.parametrize("processes", ["1", "2"])
async def test_control_call_under_way_has_the_grace_time_of_a_request(processes: str, grace: str) -> None:
    """It took its worker longer than an idle process takes to end: it is answered, by the worker or a 503."""
    variables = {"DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS": grace, "DYN_HTTP_PROCESSES": processes}
    async with SimServer("sglang", SimConfig()) as sim, served(sim.url, **variables) as gateway:
        sim.behave(Reply(body=b"{}", delay=3.0) if grace == "30" else Silence(), path=CONTROL)
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            call = asyncio.ensure_future(client.post(gateway.url + CONTROL, json={"model_path": "m"}))
            await until(lambda: any(each.target == CONTROL.encode() for each in sim.all_requests))
            gateway.process.send_signal(signal.SIGTERM)
            reply = await call
            if grace == "30":
                assert (reply.status_code, reply.content) == (200, b"{}")
            else:
                assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
        assert await asyncio.wait_for(gateway.process.wait(), PATIENCE) == 0


@dataclass
class Clients:
    """Many clients that send one request after another, and the outcomes of all of them.

    ``retries``: after a 503, or no answer at all, they ask again later, as ``Retry-After`` says, scaled down.
    """

    urls: list[str]
    retries: bool
    ready: list[str] = field(default_factory=list)
    done: int = 0
    refused: int = 0
    stopped: bool = False

    async def run(self, number: int) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            asked = 0
            while not self.stopped:
                asked += 1
                await self._ask(client, f"{number}-{asked}", stream=asked % 2 == 0)

    async def _ask(self, client: httpx.AsyncClient, name: str, *, stream: bool) -> None:
        while True:
            choice = self.ready or self.urls
            url = choice[hash(name) % len(choice)]
            try:
                reply = await client.post(url + "/generate", json=body_of("sglang", 4, stream, rid=name))
            except (httpx.NetworkError, AttributeError):
                # anyio raises AttributeError for a connection that is reset as soon as it is made.
                # Also a reset of who was in the queue of a socket that stopped listening: the kernel's way.
                assert self.retries, "somebody was sent to a gateway that was gone"
                await asyncio.sleep(0.02)
                continue
            if reply.status_code == 503 and self.retries:
                assert reply.headers["retry-after"] == "1"
                # The other reason is a gateway that has begun and does not know its worker yet.
                assert "shutting down" not in reply.text or reply.headers["connection"] == "close"
                self.refused += 1
                await asyncio.sleep(0.02)
                continue
            assert reply.status_code == 200, reply.text
            assert not stream or (reply.content.endswith(b"[DONE]\n\n") and b'"error"' not in reply.content)
            self.done += 1
            return

    async def balance(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            while not self.stopped:
                found = [url for url in self.urls if await status(client, url, "/ready") == 200]
                self.ready = found or self.ready
                await asyncio.sleep(0.02)


@asynccontextmanager
async def load(urls: list[str], *, retries: bool) -> AsyncIterator[Clients]:
    """Sixteen clients, until the block is over; fails with the first request that does."""
    clients = Clients(urls, retries)
    async with asyncio.TaskGroup() as group:
        if not retries:
            clients.ready = list(urls)
            group.create_task(clients.balance())
        for number in range(16):
            group.create_task(clients.run(number))
        yield clients
        clients.stopped = True


async def restart(stack: AsyncExitStack, gateway: Served, *workers: str, **variables: str) -> Served:
    """End it as an orchestrator does, and start the next one in its place."""
    gateway.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(gateway.process.wait(), PATIENCE) == 0
    return await stack.enter_async_context(served(*workers, DYN_HTTP_PORT=str(gateway.port), **variables))


async def progress(clients: Clients, more: int) -> None:
    wanted = clients.done + more
    await until(lambda: clients.done >= wanted)


async def test_rolling_restart_behind_a_balancer_is_seen_by_no_request() -> None:
    """Readiness goes first, so that not even a 503 is seen; each request is generated once."""
    variables = {DELAY: "0.5"}
    async with SimServer("sglang", SLOW) as sim, AsyncExitStack() as stack:
        gateways = [await stack.enter_async_context(served(sim.url, **variables)) for _ in range(2)]
        async with load([gateway.url for gateway in gateways], retries=False) as clients:
            for gateway in gateways:
                await progress(clients, 30)
                await restart(stack, gateway, sim.url, **variables)
            await progress(clients, 30)
        assert len(generates(sim)) == clients.done and clients.refused == 0
        assert not sim.aborts


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_restart_on_one_port_loses_no_request_of_clients_that_try_again(processes: str) -> None:
    """With nothing in between: a 503 that closes, a closed port, then the next gateway. What got no answer
    was not begun: each request is generated once."""
    variables = {"DYN_HTTP_PROCESSES": processes}
    async with SimServer("sglang", SLOW) as sim, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(served(sim.url, **variables))
        async with load([gateway.url], retries=True) as clients:
            await progress(clients, 30)
            await restart(stack, gateway, sim.url, **variables)
            await progress(clients, 30)
        assert len(generates(sim)) == clients.done
        assert not sim.aborts


async def test_limits_of_all_processes_together_are_shared_out() -> None:
    """Each process has its share, so together they never have more; refusals are summed up."""
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url, DYN_MAX_IN_FLIGHT="2") as gateway:
        for pid in gateway.pids:
            sim.behave(Pace(prefill_base=60.0), times=2)
            first, second = await gateway.client_of(pid), await gateway.client_of(pid)
            first.request("/generate", json.dumps(body_of("sglang")).encode())
            before = len(generates(sim))
            await arrived(before + 1, sim)
            second.request("/generate", json.dumps(body_of("sglang")).encode())
            assert (await second.head()).startswith(b"HTTP/1.1 503 ")
        status_, text = await gateway.get("/metrics", gateway.pids[0])
        assert (status_, b'limits_hit_total{limit="in_flight"} 2\n' in text) == (200, True)
