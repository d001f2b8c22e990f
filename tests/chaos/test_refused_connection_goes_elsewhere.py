"""A worker that refuses connections has not received the request: another worker gets it, once."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.dialects import GENERATE, ROUTES, SGLANG, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.process import worker_process
from tests.chaos.worker import workers


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_requests_go_to_the_other_worker_at_once_each_exactly_once(gw: Gateway, route: Route) -> None:
    """A hundred requests at once, then those with routing keys of the killed worker."""
    async with worker_process(route.kind, "counted") as doomed, workers(route.kind, 1) as (other,):
        await gw.serve(doomed, other)
        keys = await gw.keys_of(route, other, 20, of_other=True)
        before = len(other.calls)
        await doomed.kill()
        assert await gw.ask_many(route, 100) == [200] * 100
        assert (await gw.site.workers())[doomed.url]["state"] == "dead"
        for key in 2 * keys:
            assert (await gw.ask(route, key)).status_code == 200
        assert len(other.calls) == before + 140


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_worker_that_refuses_is_soon_not_tried_any_more(gw: Gateway, route: Route) -> None:
    """One refusal is proof enough: later requests need a single attempt."""
    async with workers(route.kind, 2) as (doomed, other):
        await gw.serve(doomed, other)
        await doomed.die()
        await gw.ask_many(route, 30)
        last = f"last-{named(route)}"
        reply = await gw.client.post(route.path, json=route.question(), headers={"x-request-id": last})
        assert reply.status_code == 200
        line = await gw.access(last)
        assert (line["worker"], line["attempts"]) == (other.url, 1)


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_connections_that_died_with_their_worker_cost_no_request(gw: Gateway, route: Route) -> None:
    """The gateway may notice the end of a kept connection only when it uses it."""
    async with workers(route.kind, 2) as (doomed, other):
        await gw.serve(doomed, other)
        await gw.ask_many(route, 40)
        assert doomed.calls
        dying = asyncio.ensure_future(doomed.die())
        statuses = await gw.ask_many(route, 40)
        await dying
        # A request that was dispatched at that very moment may have begun, and is not sent again.
        assert statuses.count(200) >= 39
        assert len(other.calls) + len(doomed.calls) <= 80


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_unreachable_fleet_is_reported_and_its_return_is_noticed(gw: Gateway, route: Route) -> None:
    """A 502 or 503, never a hang; a worker that listens again serves again."""
    async with workers(route.kind, 2) as fleet:
        await gw.serve(*fleet)
        for worker in fleet:
            await worker.die()
        assert set(await gw.ask_many(route, 20)) <= {502, 503}
        await fleet[0].start()
        await gw.site.ready(fleet[0])
        assert (await gw.ask(route)).status_code == 200


async def test_control_call_names_the_worker_that_refused_it(gw: Gateway) -> None:
    async with workers("sglang", 2) as (doomed, other):
        await gw.serve(doomed, other)
        await doomed.die()
        reply = await gw.client.post("/flush_cache", headers={"x-reply-shape": "summary"})
        received = {each["worker"] for each in reply.json()["results"] if each["error"] is None}
        assert received == {other.url} and reply.status_code >= 400
        assert len(other.requests_to("/flush_cache")) == 1
        assert (await gw.ask(SGLANG)).status_code == 200
