"""A lost reply is not generated again: a request that a worker may have begun is not sent to another."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.chaos.dialects import GENERATE, ROUTES, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.process import LONG
from tests.chaos.worker import Behaviour, Call, Worker, workers

#: Seconds in which the gateway reads what was sent: a reset discards the bytes that it has not read.
READ_WITHIN = 0.5
OWN_500 = b'{"error": {"message": "CUDA error: an illegal memory access was encountered"}}'


async def before_the_head(call: Call) -> None:
    call.reset()


async def in_a_body(call: Call) -> None:
    call.half()
    await asyncio.sleep(READ_WITHIN)
    call.reset()


async def in_a_long_body(call: Call) -> None:
    call.half(LONG)
    await asyncio.sleep(READ_WITHIN)
    call.reset()


async def with_a_500(call: Call) -> None:
    call.reply(OWN_500, 500)


async def after_the_head(call: Call) -> None:
    call.stream()
    await asyncio.sleep(READ_WITHIN)
    call.reset()


async def after_an_event(call: Call) -> None:
    call.stream()
    call.event()
    await asyncio.sleep(READ_WITHIN)
    call.reset()


async def lost(gw: Gateway, route: Route, fleet: list[Worker], *, stream: bool = False) -> httpx.Response:
    """Send one request and return its reply; it was dispatched once, and the fleet is idle afterwards."""
    await gw.serve(*fleet)
    try:
        reply = await gw.ask(route, stream=stream)
    finally:
        await gw.idle()
        assert sum(len(worker.calls) for worker in fleet) == 1
    return reply


async def warm(gw: Gateway, route: Route, fleet: list[Worker]) -> None:
    """Leave a kept connection to each worker that has carried a request."""
    await gw.serve(*fleet)
    while not all(worker.calls for worker in fleet):
        await gw.ask_many(route, 4)
    for worker in fleet:
        worker.calls.clear()


@pytest.mark.parametrize("kept", [False, True], ids=["fresh", "kept"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_connection_that_breaks_before_the_head_is_a_502_and_one_generation(
    gw: Gateway, route: Route, kept: bool
) -> None:
    """Also on a connection that has carried other requests: that it broke proves nothing."""
    async with workers(route.kind, 2) as fleet:
        if kept:
            await warm(gw, route, fleet)
        for worker in fleet:
            worker.behave = before_the_head
        reply = await lost(gw, route, fleet)
        assert reply.status_code == 502
        assert reply.json()["error"]["message"]


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_reply_that_breaks_in_its_body_is_a_502_and_one_generation(gw: Gateway, route: Route) -> None:
    """The gateway buffers a short reply until it is complete, so the client does not get the broken half."""
    async with workers(route.kind, 2, in_a_body) as fleet:
        reply = await lost(gw, route, fleet)
        assert reply.status_code == 502
        assert reply.json()["error"]["message"]


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_long_reply_that_breaks_in_its_body_is_visibly_cut_and_one_generation(
    gw: Gateway, route: Route
) -> None:
    """The gateway has sent the beginning of a reply of over a mebibyte."""
    async with workers(route.kind, 2, in_a_long_body) as fleet:
        with pytest.raises(httpx.TransportError):
            await lost(gw, route, fleet)


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_500_of_a_worker_is_the_clients_and_one_generation(gw: Gateway, route: Route) -> None:
    async with workers(route.kind, 2, with_a_500) as fleet:
        reply = await lost(gw, route, fleet)
        assert (reply.status_code, reply.content) == (500, OWN_500)


@pytest.mark.parametrize("behave", [after_the_head, after_an_event])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_stream_that_breaks_ends_with_an_error_and_is_one_generation(
    gw: Gateway, route: Route, behave: Behaviour
) -> None:
    async with workers(route.kind, 2, behave) as fleet:
        reply = await lost(gw, route, fleet, stream=True)
        assert reply.status_code == 200
        *_, error, done, rest = reply.content.split(b"\n\n")
        assert error.startswith(b'data: {"error"') and (done, rest) == (b"data: [DONE]", b"")


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_fifty_losses_at_once_are_fifty_generations(gw: Gateway, route: Route) -> None:
    """Also while the workers are suspect: no request is sent twice, and none stays without a reply."""
    async with workers(route.kind, 2, before_the_head) as fleet:
        await gw.serve(*fleet)
        statuses = await gw.ask_many(route, 50, 50)
        assert set(statuses) <= {502, 503}
        assert sum(len(worker.calls) for worker in fleet) == statuses.count(502)


async def test_lost_control_call_is_not_repeated(gw: Gateway) -> None:
    """Weights are loaded once; the summary names the worker whose answer is missing."""
    async with workers("sglang", 2) as fleet:
        await gw.serve(*fleet)
        fleet[0].breaks = "/update_weights_from_disk"
        reply = await gw.client.post("/update_weights_from_disk", json={"model_path": "/m"})
        assert reply.status_code >= 500
        errors = {result["worker"]: result["error"] for result in reply.json()["results"]}
        assert errors[fleet[0].url] and not errors[fleet[1].url]
        assert [len(worker.requests_to("/update_weights_from_disk")) for worker in fleet] == [1, 1]
