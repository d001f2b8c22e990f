"""The gateway may start before its workers; until then it reports that it has none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.dialects import ENGINES, GENERATE, ROUTES, Route, named
from tests.chaos.gateways import Gateway, gateway
from tests.chaos.worker import workers
from tests.support.processes import free_port


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_gateway_without_a_worker_is_alive_not_ready_and_refuses_with_a_time_to_wait(
    gw: Gateway, route: Route
) -> None:
    assert (await gw.client.get("/health")).status_code == 200
    assert (await gw.client.get("/readiness")).status_code == 503
    assert (await gw.client.get("/workers")).json()["workers"] == []
    reply = await gw.ask(route)
    assert reply.status_code == 503 and int(reply.headers["retry-after"]) > 0
    assert reply.json()["error"]["message"]


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_worker_that_joins_serves(gw: Gateway, route: Route) -> None:
    async with workers(route.kind, 1) as (worker,):
        await gw.serve(worker)
        assert (await gw.ask(route)).status_code == 200
        assert (await gw.client.get("/readiness")).status_code == 200


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_worker_that_was_registered_before_it_listened_is_found(gw: Gateway, route: Route) -> None:
    """A trainer registers its engines when it starts them, and they load for minutes."""
    async with workers(route.kind, 1) as (worker,):
        await worker.die()
        await gw.client.post("/workers", json={"url": worker.url})
        await asyncio.sleep(0.05)
        assert (await gw.ask(route)).status_code == 503
        await worker.start()
        await gw.site.ready(worker)
        assert (await gw.ask(route)).status_code == 200


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_gateway_started_with_a_live_and_a_dead_worker_serves_from_the_live_one(
    tmp_path: Path, route: Route
) -> None:
    """The dead worker never gets a request."""
    async with workers(route.kind, 1) as (live,):
        dead = f"http://127.0.0.1:{free_port()}"
        flags = ("--worker", dead, "--worker", live.url)
        async with gateway(tmp_path / "log", *flags) as started:
            await started.site.ready(live)
            for _ in range(5):
                assert (await started.ask(route)).status_code == 200
            listed = await started.site.workers()
            assert listed[live.url]["state"] == "ready" and listed[dead]["state"] in ("joining", "dead")


@pytest.mark.parametrize("kind", ENGINES)
async def test_requests_that_may_wait_are_served_once_the_first_worker_is_there(
    tmp_path: Path, kind: str
) -> None:
    """With ``--queue-seconds``, which is off by default."""
    route = next(route for route in GENERATE if route.kind == kind)
    async with gateway(tmp_path / "log", "--queue-seconds", "20") as patient, workers(kind, 1) as (worker,):
        waiting = [asyncio.ensure_future(patient.ask(route)) for _ in range(5)]
        await asyncio.sleep(0.05)
        assert not any(each.done() for each in waiting)
        await patient.serve(worker)
        assert [reply.status_code for reply in await asyncio.gather(*waiting)] == [200] * 5
        assert len(worker.calls) == 5
