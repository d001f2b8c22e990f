"""A worker that refuses connections has not received the request: another worker gets it, once."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.dialects import GENERATE, ROUTES, Route, named
from tests.chaos.gateways import Gateway


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_requests_go_to_the_other_worker_at_once_each_exactly_once(gw: Gateway, route: Route) -> None:
    """A hundred requests at once, then those with routing keys of the killed worker; it is not tried again
    until it listens.
    """
    async with gw.fleet(route.kind) as (doomed, other):
        keys = await gw.keys_of(route, doomed, 20)
        before = len(other.calls)
        await doomed.die()
        assert await gw.ask_many(route, 100, 100) == [200] * 100
        assert await gw.states(doomed) == ["dead"]
        for key in 2 * keys:
            assert (await gw.ask(route, key)).status_code == 200
        assert len(other.calls) == before + 140
        last = f"last-{named(route)}"
        await gw.client.post(route.path, json=route.question(), headers={"x-request-id": last})
        line = await gw.access(last)
        assert (line["worker"], line["attempts"]) == (other.url, 1)


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_connections_that_died_with_their_worker_cost_no_request(gw: Gateway, route: Route) -> None:
    """The gateway may notice the end of a kept connection only when it uses it."""
    async with gw.fleet(route.kind) as (doomed, other):
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
    async with gw.fleet(route.kind) as fleet:
        for worker in fleet:
            await worker.die()
        assert set(await gw.ask_many(route, 20)) <= {502, 503}
        await fleet[0].start()
        await gw.site.ready(fleet[0])
        assert (await gw.ask(route)).status_code == 200
