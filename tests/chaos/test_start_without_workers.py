"""The gateway may start before its workers; until then it reports that it has none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.dialects import GENERATE, ROUTES, Route, named
from tests.chaos.gateways import Gateway, gateway
from tests.chaos.worker import workers


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_gateway_without_a_worker_is_alive_not_ready_and_refuses_until_one_listens(
    gw: Gateway, route: Route
) -> None:
    """A trainer registers its engines when it starts them, and they load for minutes."""
    async with workers(route.kind, 1) as (worker,):
        await worker.die()
        for registered in (False, True):
            if registered:
                await gw.client.post("/workers", json={"url": worker.url})
            assert (await gw.client.get("/health")).status_code == 200
            assert (await gw.client.get("/readiness")).status_code == 503
            reply = await gw.ask(route)
            assert reply.status_code == 503 and reply.json()["error"]["message"]
            assert registered or int(reply.headers["retry-after"]) > 0
        await worker.start()
        await gw.site.ready(worker)
        assert (await gw.ask(route)).status_code == 200
        assert (await gw.client.get("/readiness")).status_code == 200


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_gateway_started_with_a_dead_worker_serves_from_the_one_that_joins(
    tmp_path: Path, route: Route
) -> None:
    """Requests may wait for it with ``--queue-seconds``, which is off by default."""
    async with workers(route.kind, 2) as (dead, live):
        await dead.die()
        flags = ("--worker", dead.url, "--worker", live.url, "--queue-seconds", "60")
        await live.die()
        async with gateway(tmp_path / "log", *flags) as started:
            waiting = [asyncio.ensure_future(started.ask(route)) for _ in range(5)]
            await asyncio.sleep(0.05)
            assert not any(each.done() for each in waiting)
            await live.start()
            assert [reply.status_code for reply in await asyncio.gather(*waiting)] == [200] * 5
            assert (await started.states(live)) == ["ready"]
            assert set(await started.states(dead)) <= {"joining", "dead"}
            assert len(live.calls) == 5
