"""A worker that refuses connections never had the request: the next one gets it, at once and once."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from tests.chaos.dialects import GENERATE, ROUTES, SGLANG, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.process import WorkerProcess, worker_process
from tests.chaos.worker import Worker, workers

KEY = "x-smg-routing-key"


async def timed(gw: Gateway, route: Route, key: str | None = None) -> tuple[httpx.Response, float]:
    """One request and the seconds it took."""
    began = time.monotonic()
    headers = {} if key is None else {KEY: key}
    reply = await gw.client.post(route.path, json=route.question(), headers=headers)
    return reply, time.monotonic() - began


async def ten_at_a_time(gw: Gateway, route: Route, count: int) -> list[tuple[httpx.Response, float]]:
    turns = asyncio.Semaphore(10)

    async def one() -> tuple[httpx.Response, float]:
        async with turns:
            return await timed(gw, route)

    return await asyncio.gather(*(one() for _ in range(count)))


async def homes(gw: Gateway, route: Route, doomed: WorkerProcess, other: Worker) -> list[str]:
    """Twenty routing keys whose requests go to ``doomed``."""
    found: list[str] = []
    for number in range(1000):
        before = len(other.calls)
        for _ in range(2):
            await timed(gw, route, f"key-{number}")
        assert len(other.calls) - before in (0, 2), "a key has one home"
        if len(other.calls) == before:
            found.append(f"key-{number}")
        if len(found) == 20:
            return found
    raise AssertionError(f"no twenty keys live on {doomed.url}")


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_requests_go_to_the_other_worker_at_once_each_exactly_once(gw: Gateway, route: Route) -> None:
    """A hundred at once, then those whose keys had lived there; the one that is left serves all."""
    async with worker_process(route.kind, "counted") as doomed, workers(route.kind, 1) as (left,):
        for worker in (doomed, left):
            await gw.client.post("/workers", json={"url": worker.url})
        await gw.site.ready(doomed, left)
        keys = await homes(gw, route, doomed, left)
        before = len(left.calls)
        await doomed.kill()
        replies = await ten_at_a_time(gw, route, 100)
        assert [reply.status_code for reply, _ in replies] == [200] * 100
        assert sorted(seconds for _, seconds in replies)[94] < 0.3
        assert (await gw.site.workers())[doomed.url]["state"] == "dead"
        for _ in range(2):
            keyed = [await timed(gw, route, key) for key in keys]
            assert [reply.status_code for reply, _ in keyed] == [200] * 20
        assert len(left.calls) == before + 140


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_worker_that_refuses_is_soon_not_tried_any_more(gw: Gateway, route: Route) -> None:
    """One refusal is enough, as nothing can be wrong about it: later requests need a single attempt."""
    async with workers(route.kind, 2) as (doomed, left):
        await gw.serve(doomed, left)
        await doomed.die()
        await ten_at_a_time(gw, route, 30)
        last = f"last-{named(route)}"
        reply = await gw.client.post(route.path, json=route.question(), headers={"x-request-id": last})
        assert reply.status_code == 200
        line = await gw.access(last)
        assert (line["worker"], line["attempts"]) == (left.url, 1)


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_connections_that_died_with_their_worker_cost_no_request(gw: Gateway, route: Route) -> None:
    """Kept ones, of which the gateway may learn only as it uses them."""
    async with workers(route.kind, 2) as (doomed, left):
        await gw.serve(doomed, left)
        await ten_at_a_time(gw, route, 40)
        assert doomed.calls
        dying = asyncio.ensure_future(doomed.die())
        replies = await ten_at_a_time(gw, route, 40)
        await dying
        # What had been handed over in that very moment may have begun, and is not said twice.
        assert [reply.status_code for reply, _ in replies].count(200) >= 39
        assert len(left.calls) + len(doomed.calls) <= 80


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_unreachable_fleet_is_reported_at_once_and_its_return_is_noticed(
    gw: Gateway, route: Route
) -> None:
    """502 or 503 within a second, never a hang; a worker that comes back serves within a second or two."""
    async with workers(route.kind, 2) as fleet:
        await gw.serve(*fleet)
        for worker in fleet:
            await worker.die()
        replies = await ten_at_a_time(gw, route, 20)
        assert {reply.status_code for reply, _ in replies} <= {502, 503}
        assert max(seconds for _, seconds in replies) < 1
        await fleet[0].start()
        began = time.monotonic()
        await gw.site.ready(fleet[0])
        assert time.monotonic() - began < 2
        reply, _ = await timed(gw, route)
        assert reply.status_code == 200


async def test_control_call_names_the_worker_that_refused_it(gw: Gateway) -> None:
    async with workers("sglang", 2) as (doomed, left):
        await gw.serve(doomed, left)
        await doomed.die()
        reply = await gw.client.post("/flush_cache", headers={"x-reply-shape": "summary"})
        received = {each["worker"] for each in reply.json()["results"] if each["error"] is None}
        assert received == {left.url} and reply.status_code >= 400
        assert len(left.requests_to("/flush_cache")) == 1
        assert (await gw.client.post(SGLANG.path, json=SGLANG.question())).status_code == 200
