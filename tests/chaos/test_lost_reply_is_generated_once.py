"""A lost reply is not generated again: a request that a worker may have begun is not sent to another."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from gateway.sim import Drop
from tests.chaos.dialects import DONE, GENERATE, ROUTES, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.worker import Behaviour, Call, Worker

#: Tokens of a reply that is too long for the gateway to buffer until it is complete.
LONG = 600_000
#: Seconds in which the gateway reads what was sent: a reset discards the bytes that it has not read.
READ_WITHIN = 0.5
OWN_500 = b'{"error": {"message": "CUDA error: an illegal memory access was encountered"}}'


async def before_the_head(call: Call) -> None:
    call.reset()


async def with_a_500(call: Call) -> None:
    call.reply(OWN_500, 500)


def in_a_body(tokens: int) -> Behaviour:
    async def behave(call: Call) -> None:
        call.half(tokens)
        await asyncio.sleep(READ_WITHIN)
        call.reset()

    return behave


def after_events(count: int) -> Behaviour:
    async def behave(call: Call) -> None:
        call.stream(count)
        await asyncio.sleep(READ_WITHIN)
        call.reset()

    return behave


async def lost(gw: Gateway, route: Route, fleet: list[Worker], *, stream: bool = False) -> httpx.Response:
    """Send one request and return its reply; it was dispatched once, and the fleet is idle afterwards."""
    before = sum(len(worker.calls) for worker in fleet)
    try:
        return await gw.ask(route, stream=stream)
    finally:
        await gw.idle()
        assert sum(len(worker.calls) for worker in fleet) == before + 1


@pytest.mark.parametrize("kept", [False, True], ids=["fresh", "kept"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_connection_that_breaks_before_the_head_is_a_502_and_one_generation(
    gw: Gateway, route: Route, kept: bool
) -> None:
    """Also on a connection that has carried other requests: that it broke proves nothing."""
    async with gw.fleet(route.kind) as fleet:
        while kept and not all(worker.calls for worker in fleet):
            await gw.ask_many(route, 4)
        for worker in fleet:
            worker.behaviour = before_the_head
        reply = await lost(gw, route, fleet)
        assert reply.status_code == 502 and reply.json()["error"]["message"]


@pytest.mark.parametrize("tokens", [3, LONG], ids=["short", "long"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_reply_that_breaks_in_its_body_is_a_502_or_a_visible_cut_and_one_generation(
    gw: Gateway, route: Route, tokens: int
) -> None:
    """The gateway buffers a short reply until it is complete; it has sent the beginning of a long one."""
    async with gw.fleet(route.kind, 2, in_a_body(tokens)) as fleet:
        if tokens == LONG:
            with pytest.raises(httpx.TransportError):
                await lost(gw, route, fleet)
        else:
            reply = await lost(gw, route, fleet)
            assert reply.status_code == 502 and reply.json()["error"]["message"]


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_500_of_a_worker_is_the_clients_and_one_generation(gw: Gateway, route: Route) -> None:
    async with gw.fleet(route.kind, 2, with_a_500) as fleet:
        reply = await lost(gw, route, fleet)
        assert (reply.status_code, reply.content) == (500, OWN_500)


@pytest.mark.parametrize("events", [0, 1], ids=["after_the_head", "after_an_event"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_stream_that_breaks_ends_with_an_error_and_is_one_generation(
    gw: Gateway, route: Route, events: int
) -> None:
    async with gw.fleet(route.kind, 2, after_events(events)) as fleet:
        reply = await lost(gw, route, fleet, stream=True)
        assert reply.status_code == 200
        *_, error, done, rest = reply.content.split(b"\n\n")
        assert error.startswith(b'data: {"error"') and (done + b"\n\n", rest) == (DONE, b"")


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_fifty_losses_at_once_are_fifty_generations(gw: Gateway, route: Route) -> None:
    """Also while the workers are suspect: no request is sent twice, and none stays without a reply."""
    async with gw.fleet(route.kind, 2, before_the_head) as fleet:
        statuses = await gw.ask_many(route, 50, 50)
        assert set(statuses) <= {502, 503}
        assert sum(len(worker.calls) for worker in fleet) == statuses.count(502)


async def test_lost_control_call_is_not_repeated(gw: Gateway) -> None:
    """Weights are loaded once; the summary names the worker whose answer is missing."""
    path = "/update_weights_from_disk"
    async with gw.fleet("sglang") as fleet:
        fleet[0].behave(Drop(), path=path)
        reply = await gw.client.post(path, json={"model_path": "/m"})
        assert reply.status_code >= 500
        errors = {result["worker"]: result["error"] for result in reply.json()["results"]}
        assert errors[fleet[0].url] and not errors[fleet[1].url]
        assert [len(worker.requests_to(path)) for worker in fleet] == [1, 1]
