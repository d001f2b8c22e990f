"""A client's disconnect in the middle of a stream stops its worker, at whatever pace the events come."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.dialects import ROUTES, Route, named
from tests.chaos.gateways import Gateway
from tests.chaos.worker import Behaviour, Call, begun
from tests.support.gateway import RawClient, until


async def slow(call: Call) -> None:
    """Send an event each 100 ms, without end."""
    call.stream()
    while True:
        call.event()
        await asyncio.sleep(0.1)


async def flood(call: Call) -> None:
    """Send events as fast as they are read, without end."""
    call.stream()
    while True:
        for _ in range(0 if call.exchange.connection.paused else 100):
            call.event()
        await asyncio.sleep(0.001)


async def streaming(gw: Gateway, route: Route, limit: int = 2**16) -> RawClient:
    """Return a client that has read the head of its stream."""
    client = await RawClient.connect(gw.port, limit=limit)
    client.request(route.path, route.body(stream=True))
    await client.head()
    return client


@pytest.mark.parametrize("behave", [slow, flood, begun])
@pytest.mark.parametrize("reset", [True, False], ids=["rst", "fin"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_stream_that_is_dropped_after_five_events_stops_at_the_worker(
    gw: Gateway, route: Route, reset: bool, behave: Behaviour
) -> None:
    """In a silence there is nothing to send to the client; in a flood the client's socket is full."""
    async with gw.fleet(route.kind, 1, behave) as (worker,):
        client = await streaming(gw, route)
        for _ in range(5):
            await client.reader.readuntil(b"\n\n")
        client.leave(reset=reset)
        (call,) = worker.calls
        await until(call.gone.is_set)
        await gw.idle()
        if behave is slow:  # the connection of an abort is kept for some seconds; none carries a request
            await until(lambda: worker.connections == 0)
        assert len(worker.calls) == 1


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_client_that_stops_reading_and_then_leaves_is_noticed(gw: Gateway, route: Route) -> None:
    """Its socket has been full for a while, so nobody was reading or writing it."""
    async with gw.fleet(route.kind, 1, flood) as (worker,):
        client = await streaming(gw, route, limit=4096)
        (call,) = worker.calls
        seen = -1
        while seen < call.events:
            seen = call.events
            await asyncio.sleep(0.3)
        client.leave()
        await until(call.gone.is_set)
        await gw.idle()
