"""A client's disconnect in the middle of a stream stops its worker, at whatever pace the events come."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.dialects import ROUTES, Route, named
from tests.chaos.gateways import Gateway, sockets_to
from tests.chaos.worker import Behaviour, Call, workers
from tests.support.gateway import RawClient, until


async def slow_stream(call: Call) -> None:
    """Send an event each 100 ms, for a minute."""
    call.stream()
    for _ in range(600):
        call.event()
        await asyncio.sleep(0.1)
    call.finish()


async def endless_stream(call: Call) -> None:
    """Send events as fast as possible, without end."""
    call.stream()
    while True:
        for _ in range(100):
            call.event()
        await asyncio.sleep(0.001)


async def five_events_then_silence(call: Call) -> None:
    call.stream()
    for _ in range(5):
        call.event()
    await asyncio.Event().wait()


@pytest.mark.parametrize("behave", [slow_stream, endless_stream, five_events_then_silence])
@pytest.mark.parametrize("reset", [True, False], ids=["rst", "fin"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_stream_that_is_dropped_after_five_events_stops_at_the_worker(
    gw: Gateway, route: Route, reset: bool, behave: Behaviour
) -> None:
    """In a silence there is nothing to send to the client; in a flood the client's socket is full."""
    async with workers(route.kind, 1, behave) as (worker,):
        await gw.serve(worker)
        client = await RawClient.connect(gw.port)
        client.request(route.path, route.body(stream=True))
        await client.head()
        for _ in range(5):
            await client.reader.readuntil(b"\n\n")
        client.leave(reset=reset)
        (call,) = worker.calls
        await until(call.gone.is_set)
        await gw.idle()
        if behave is slow_stream:
            # The connection of an abort is kept for some seconds; none carries a request.
            await until(lambda: sockets_to(worker) == 0)
        assert len(worker.calls) == 1


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_client_that_stops_reading_and_then_leaves_is_noticed(gw: Gateway, route: Route) -> None:
    """Its socket has been full for a while, so nobody was reading or writing it."""
    async with workers(route.kind, 1, endless_stream) as (worker,):
        await gw.serve(worker)
        client = await RawClient.connect(gw.port, limit=4096)
        client.request(route.path, route.body(stream=True))
        await client.head()
        (call,) = worker.calls
        await until(lambda: call.stuck, 30)
        client.leave()
        await until(call.gone.is_set)
        await gw.idle()
