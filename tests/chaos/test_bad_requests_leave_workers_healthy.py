"""A worker's reply to a bad request does not count against the worker."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.chaos.dialects import ROUTES, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.worker import Behaviour, Call, Worker, good, workers

TOO_LONG = b'{"error":{"message":"The input (50000 tokens) is longer than the model\'s context length"}}'
BAD = {"x-request": "bad"}


def refusing(status: int) -> Behaviour:
    """Answer requests with the header BAD with ``status``, all others as requested."""

    async def behave(call: Call) -> None:
        if call.request.header("x-request") == "bad":
            return call.reply(TOO_LONG, status)
        await good(call)

    return behave


async def storm(gw: Gateway, route: Route, count: int) -> list[httpx.Response]:
    """Send ``count`` bad requests, 20 at a time, and return the replies."""
    turns = asyncio.Semaphore(20)

    async def one(index: int) -> httpx.Response:
        async with turns:
            question = route.question(stream=index % 2 == 1)
            return await gw.client.post(route.path, json=question, headers=BAD)

    return await asyncio.gather(*(one(index) for index in range(count)))


async def check(gw: Gateway, route: Route, fleet: list[Worker], status: int, count: int) -> None:
    """Check that each bad request reaches one worker once, with the worker's own reply, and others go on."""
    await gw.serve(*fleet)
    bad = await storm(gw, route, count)
    assert await gw.ask_many(route, 20, 20) == [200] * 20
    assert {(reply.status_code, reply.content) for reply in bad} == {(status, TOO_LONG)}
    received = [call.request.header("x-request") for worker in fleet for call in worker.calls]
    assert (received.count("bad"), received.count(None)) == (count, 20)
    assert all(worker.calls for worker in fleet)


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_hundred_requests_answered_400_take_no_worker_out(gw: Gateway, route: Route) -> None:
    async with workers(route.kind, 2, refusing(400)) as fleet:
        await check(gw, route, fleet, 400, 100)
        assert await gw.states(*fleet) == ["ready", "ready"]


@pytest.mark.parametrize("status", [401, 403, 404, 409, 413, 422, 499, 500, 501, 502, 504])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_other_statuses_take_no_worker_out_either(gw: Gateway, route: Route, status: int) -> None:
    """A worker that reports a failure is reachable."""
    async with workers(route.kind, 2, refusing(status)) as fleet:
        await check(gw, route, fleet, status, 40)
        assert await gw.states(*fleet) == ["ready", "ready"]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_busy_worker_is_used_if_there_is_no_other(gw: Gateway, route: Route, status: int) -> None:
    """A busy worker is not at fault, so the gateway does not refuse a request for it by itself."""
    async with workers(route.kind, 2, refusing(status)) as fleet:
        await check(gw, route, fleet, status, 40)
        assert set(await gw.states(*fleet)) <= {"ready", "busy"}


async def test_requests_that_the_gateway_itself_refuses_reach_nobody(gw: Gateway) -> None:
    async with workers("sglang", 1) as (worker,):
        await gw.serve(worker)
        for body in (b"", b"{", b"[]", b"\xff"):
            reply = await gw.client.post("/generate", content=body)
            assert reply.status_code == 400 and reply.json()["error"]["message"]
        assert worker.calls == []
        assert await gw.states(worker) == ["ready"]
