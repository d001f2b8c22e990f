"""A client that drops its stream stops its worker: nothing is drained for nobody."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.chaos.dialects import ROUTES, Route, named
from tests.chaos.gateways import Gateway, sockets_to
from tests.chaos.worker import Call, workers
from tests.support.gateway import RawClient, until


async def dripping(call: Call) -> None:
    """An event each 100 ms, for a minute."""
    call.stream()
    for _ in range(600):
        call.event()
        await asyncio.sleep(0.1)
    call.finish()


async def gushing(call: Call) -> None:
    """Events as fast as they go, without end."""
    call.stream()
    while True:
        for _ in range(100):
            call.event()
        await asyncio.sleep(0.001)


async def one_then_silence(call: Call) -> None:
    """Five events, and then an engine that thinks."""
    call.stream()
    for _ in range(5):
        call.event()
    await asyncio.Event().wait()


async def after_five_events(gw: Gateway, route: Route) -> RawClient:
    """A client that has read five events of a stream."""
    client = await RawClient.connect(gw.port)
    client.request(route.path, route.body(stream=True))
    await client.head()
    for _ in range(5):
        await client.reader.readuntil(b"\n\n")
    return client


async def leave(client: RawClient, call: Call, *, reset: bool) -> None:
    """Drop the stream; its worker learns of it within a second."""
    left_at = time.monotonic()
    client.leave(reset=reset)
    await asyncio.wait_for(call.gone.wait(), 3)
    assert call.gone_at is not None and call.gone_at - left_at < 1


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_stream_that_is_dropped_after_five_events_stops_at_the_worker(
    gw: Gateway, route: Route
) -> None:
    """With a RST, and with a FIN; and the gateway holds no connection for it any more."""
    async with workers(route.kind, 1, dripping) as (worker,):
        await gw.serve(worker)
        for reset in (True, False):
            client = await after_five_events(gw, route)
            await leave(client, worker.calls[-1], reset=reset)
        assert all(call.events <= 15 for call in worker.calls)
        await gw.idle()
        # An abort's own connection is kept for some seconds; none carries a request.
        await until(lambda: sockets_to(worker) == 0)
        assert len(worker.calls) == 2


@pytest.mark.parametrize("behave", [gushing, one_then_silence])
@pytest.mark.parametrize("reset", [True, False], ids=["rst", "fin"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_stream_that_is_dropped_at_another_pace_stops_as_soon(
    gw: Gateway, route: Route, reset: bool, behave: object
) -> None:
    """In a silence of the engine there is nothing to fail at; in a flood the client's socket is full."""
    async with workers(route.kind, 1, gushing if behave is gushing else one_then_silence) as (worker,):
        await gw.serve(worker)
        client = await after_five_events(gw, route)
        await leave(client, worker.calls[0], reset=reset)
        await gw.idle()


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_client_that_stops_reading_and_then_leaves_is_noticed(gw: Gateway, route: Route) -> None:
    """Its socket has been full for a while, so nobody was reading or writing it."""
    async with workers(route.kind, 1, gushing) as (worker,):
        await gw.serve(worker)
        client = await RawClient.connect(gw.port, limit=4096)
        client.request(route.path, route.body(stream=True))
        await client.head()
        (call,) = worker.calls
        await _standstill(call)
        await leave(client, call, reset=False)
        await gw.idle()


async def _standstill(call: Call) -> None:
    """Return once the gateway takes no more of a stream."""
    async with asyncio.timeout(20):
        while not call.stuck:  # noqa: ASYNC110 - no event tells of a full socket
            await asyncio.sleep(0.02)
