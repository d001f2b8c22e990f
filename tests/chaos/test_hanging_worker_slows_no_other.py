"""A worker that hangs keeps its requests, and delays no request of another worker."""

from __future__ import annotations

import asyncio
import time

from tests.chaos.dialects import GENERATE, Route
from tests.chaos.gateways import Gateway, best_of_five
from tests.chaos.steady import steadily
from tests.chaos.worker import Worker
from tests.support.gateway import RawClient, eventually

#: Seconds that requests to the other worker, and replies of the control plane, may take.
REQUEST_LIMIT, CONTROL_LIMIT = 0.5, 1.0
CONTROL = ("/workers", "/health", "/ready", "/metrics", "/v1/models")


async def requests_at(
    gw: Gateway, route: Route, hanging: Worker, other: Worker, count: int
) -> list[RawClient]:
    """Send ``count`` requests to the worker that hangs, while ``other`` is cordoned."""
    name = (await gw.site.workers())[other.url]["id"]
    await gw.client.post(f"/workers/{name}/cordon")
    clients = [await RawClient.connect(gw.port) for _ in range(count)]
    for client in clients:
        client.request(route.path, route.body())

    async def dispatched() -> bool:
        return await gw.in_flight(hanging) == count

    await eventually(dispatched)
    await gw.client.post(f"/workers/{name}/uncordon")
    await gw.site.ready(other)
    return clients


async def unreachable(gw: Gateway, worker: Worker) -> None:
    """Return once ``worker`` gets no more requests, because its probes failed."""

    async def check() -> bool:
        return (await gw.site.workers())[worker.url]["state"] in ("suspect", "dead")

    await eventually(check, 30)


async def test_requests_to_the_other_worker_and_control_calls_do_not_wait(gw: Gateway) -> None:
    """Fifty requests hang and a hundred others are answered; then the worker gets no more requests."""
    await asyncio.gather(*(_hundred_beside_fifty(gw, route) for route in GENERATE))


async def _hundred_beside_fifty(gw: Gateway, route: Route) -> None:
    async with gw.fleet(route.kind) as (hanging, other):
        keys = await gw.keys_of(route, other, 100)
        stuck = (await gw.keys_of(route, hanging, 1))[0]
        hanging.hang()
        clients = await requests_at(gw, route, hanging, other, 50)
        before = len(other.calls)

        async def slowest() -> float:
            """Return the 99th of a hundred latencies, or the longest of the control plane, per its limit."""
            seconds = []
            async with steadily(*(gw.url + path for path in CONTROL), interval=0.25) as control:
                for key in keys:
                    began = time.monotonic()
                    assert (await gw.ask(route, key)).status_code == 200
                    seconds.append(time.monotonic() - began)
            assert control.failures == []
            return max(sorted(seconds)[98] / REQUEST_LIMIT, control.seconds[-1] / CONTROL_LIMIT)

        tries = await best_of_five(slowest, 1)
        await unreachable(gw, hanging)
        replies = await asyncio.gather(*(gw.ask(route) for _ in range(20)), gw.ask(route, stuck))
        assert [reply.status_code for reply in replies] == [200] * 21
        assert len(other.calls) == before + 100 * tries + 21
        assert await gw.in_flight(hanging) == 50
        for client in clients:
            client.leave()


async def test_worker_that_goes_on_answers_what_it_had_and_is_used_again(gw: Gateway) -> None:
    """Connections are accepted, as the system does for a suspended process, and nothing is answered."""
    await asyncio.gather(*(_suspend_and_resume(gw, route) for route in GENERATE))


async def _suspend_and_resume(gw: Gateway, route: Route) -> None:
    async with gw.fleet(route.kind) as (hanging, other):
        hanging.hang()
        clients = await requests_at(gw, route, hanging, other, 10)
        await unreachable(gw, hanging)
        assert (await gw.ask(route)).status_code == 200
        hanging.go_on()
        for client in clients:
            assert (await client.head()).startswith(b"HTTP/1.1 200 ")
            client.leave()
        await gw.site.ready(hanging, other)
        assert (len(hanging.calls), len(other.calls)) == (10, 1)
