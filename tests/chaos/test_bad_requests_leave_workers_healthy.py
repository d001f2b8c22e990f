"""A worker's reply to a bad request does not count against the worker."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.chaos.dialects import ROUTES, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.worker import Behaviour, Call, good

TOO_LONG = b'{"error":{"message":"The input (50000 tokens) is longer than the model\'s context length"}}'
BAD = {"x-request": "bad"}


def refusing(status: int) -> Behaviour:
    """Answer requests with the header BAD with ``status``, all others as requested."""

    async def behave(call: Call) -> None:
        if call.request.header("x-request") == "bad":
            return call.reply(TOO_LONG, status)
        await good(call)

    return behave


async def check(gw: Gateway, route: Route, status: int, count: int) -> set[str]:
    """Check that each bad request reaches one worker once, with the worker's own reply, and others are
    served; return the workers' states.
    """
    turns = asyncio.Semaphore(20)

    async def bad(index: int) -> httpx.Response:
        async with turns:
            question = route.question(stream=index % 2 == 1)
            return await gw.client.post(route.path, json=question, headers=BAD)

    async with gw.fleet(route.kind, 2, refusing(status)) as fleet:
        replies = await asyncio.gather(*map(bad, range(count)))
        assert await gw.ask_many(route, 20, 20) == [200] * 20
        assert {(reply.status_code, reply.content) for reply in replies} == {(status, TOO_LONG)}
        received = [call.request.header("x-request") for worker in fleet for call in worker.calls]
        assert (received.count("bad"), received.count(None)) == (count, 20)
        assert all(worker.calls for worker in fleet)
        return set(await gw.states(*fleet))


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_hundred_requests_answered_400_take_no_worker_out(gw: Gateway, route: Route) -> None:
    assert await check(gw, route, 400, 100) == {"ready"}


@pytest.mark.parametrize("status", [401, 403, 404, 409, 413, 422, 429, 499, 500, 501, 502, 503, 504])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_other_statuses_take_no_worker_out_either(gw: Gateway, route: Route, status: int) -> None:
    """A worker that reports a failure is reachable; a busy one is used if there is no other."""
    assert await check(gw, route, status, 40) <= ({"ready", "busy"} if status in (429, 503) else {"ready"})
