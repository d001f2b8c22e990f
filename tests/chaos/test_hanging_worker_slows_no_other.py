"""A worker that hangs keeps what it has, and slows nobody else."""

from __future__ import annotations

import asyncio
import time

import httpx

from tests.chaos.dialects import GENERATE, Route
from tests.chaos.gateways import Gateway
from tests.chaos.process import worker_process
from tests.chaos.steady import steadily
from tests.chaos.worker import Call, Worker, good, workers
from tests.clients.site import Listed
from tests.support.gateway import RawClient, eventually

KEY = "x-smg-routing-key"
CONTROL = ("/workers", "/health", "/ready", "/metrics", "/v1/models")


async def in_fifty_ms(call: Call) -> None:
    await asyncio.sleep(0.05)
    await good(call)


async def ask(gw: Gateway, route: Route, key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {KEY: key}
    return await gw.client.post(route.path, json=route.question(), headers=headers)


async def homes(gw: Gateway, route: Route, home: Worker, count: int) -> list[str]:
    """``count`` routing keys whose requests go to ``home``, twice at least."""
    found: list[str] = []
    for number in range(50 * count):
        before = len(home.calls)
        for _ in range(2):
            assert (await ask(gw, route, f"key-{number}")).status_code == 200
        assert len(home.calls) - before in (0, 2), "a key has one home"
        if len(home.calls) > before:
            found.append(f"key-{number}")
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} keys live on {home.url}")


async def leave_hanging(
    gw: Gateway, route: Route, hanging: Listed, other: Listed, count: int
) -> list[RawClient]:
    """``count`` requests at the worker that hangs, as ``other`` is held meanwhile."""
    name = (await gw.site.workers())[other.url]["id"]
    await gw.client.post(f"/workers/{name}/cordon")
    clients = [await RawClient.connect(gw.port) for _ in range(count)]
    for client in clients:
        client.request(route.path, route.body())

    async def there() -> bool:
        return await gw.in_flight(hanging) == count

    await eventually(there)
    await gw.client.post(f"/workers/{name}/uncordon")
    await gw.site.ready(other)
    return clients


async def until_out(gw: Gateway, worker: Listed) -> None:
    """Return once ``worker`` gets no request any more, as its probes failed."""

    async def out() -> bool:
        return (await gw.site.workers())[worker.url]["state"] in ("suspect", "dead")

    await eventually(out, 20)


async def test_requests_to_the_other_worker_and_control_calls_are_as_quick_as_ever(gw: Gateway) -> None:
    """Fifty hang, a hundred pass by them; then none goes there any more, and the fifty are nobody else's."""
    await asyncio.gather(*(pass_by(gw, route) for route in GENERATE))


async def pass_by(gw: Gateway, route: Route) -> None:
    """All of it, with a fleet of one kind."""
    async with workers(route.kind, 2) as (hanging, other):
        await gw.serve(hanging, other)
        keys = await homes(gw, route, other, 100)
        stuck = (await homes(gw, route, hanging, 1))[0]
        other.behave = in_fifty_ms
        hanging.hang()
        clients = await leave_hanging(gw, route, hanging, other, 50)
        before = len(other.calls)
        seconds = []
        async with steadily(*(gw.url + path for path in CONTROL), interval=0.25) as control:
            for key in keys:
                began = time.monotonic()
                assert (await ask(gw, route, key)).status_code == 200
                seconds.append(time.monotonic() - began)
        assert sorted(seconds)[98] < 0.5
        assert control.failures == [] and control.seconds[-1] < 1
        await until_out(gw, hanging)
        replies = await asyncio.gather(*(ask(gw, route) for _ in range(20)), ask(gw, route, stuck))
        assert [reply.status_code for reply in replies] == [200] * 21
        assert len(other.calls) == before + 121
        assert await gw.in_flight(hanging) == 50
        for client in clients:
            client.leave()


async def test_worker_that_goes_on_answers_what_it_had_and_is_used_again(gw: Gateway) -> None:
    """A process that was stopped: the system takes connections for it, and nobody reads them."""
    await asyncio.gather(*(go_on(gw, route) for route in GENERATE))


async def go_on(gw: Gateway, route: Route) -> None:
    """All of it, with a fleet of one kind."""
    async with worker_process(route.kind, "counted") as hanging, workers(route.kind, 1) as (other,):
        for worker in (hanging, other):
            await gw.client.post("/workers", json={"url": worker.url})
        await gw.site.ready(hanging, other)
        hanging.stop()
        clients = await leave_hanging(gw, route, hanging, other, 10)
        await until_out(gw, hanging)
        assert (await ask(gw, route)).status_code == 200
        hanging.go_on()
        for client in clients:
            assert (await client.head()).startswith(b"HTTP/1.1 200 ")
            client.leave()
        await gw.site.ready(hanging, other)
        await hanging.kill()
        assert len(await hanging.started()) == 10
        assert len(other.calls) == 1
