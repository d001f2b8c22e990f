"""A client that disconnects before its reply frees its worker at once, whatever it was waiting for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.chaos.dialects import GENERATE, ROUTES, Route, named
from tests.chaos.gateways import Gateway, best_of_five, gateway
from tests.chaos.worker import Behaviour, begun, good, silent
from tests.support.gateway import RawClient, eventually, until

#: Seconds within which a worker must notice that a client disconnected: 250 ms, the gateway's promise.
NOTICE = 0.25


@pytest.mark.parametrize("behave", [silent, begun], ids=["no-head", "half-a-reply"])
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_client_that_leaves_at_any_moment_frees_its_worker(
    gw: Gateway, route: Route, reset: bool, behave: Behaviour
) -> None:
    """The worker notices within 250 ms, an abort names exactly that request, which is not sent again, and a
    request beside it goes on.
    """
    async with gw.fleet(route.kind, 1, behave) as (worker,):
        stays = await RawClient.connect(gw.port)
        stays.request(route.path, route.body())
        await until(lambda: len(worker.calls) == 1)

        async def notice() -> float:
            before = len(worker.calls)
            client = await RawClient.connect(gw.port)
            client.request(route.path, route.body())
            await until(lambda: len(worker.calls) > before)
            await asyncio.sleep(0.05)  # so that the gateway has read half of a reply
            left_at = time.monotonic()
            client.leave(reset=reset)
            call = worker.calls[-1]
            await until(lambda: call.gone.is_set() and (call.aborted.is_set() or route not in GENERATE))
            assert call.gone_at is not None
            return call.gone_at - left_at

        tries = await best_of_five(notice, NOTICE)
        first = worker.calls[0]
        assert not first.gone.is_set() and not first.aborted.is_set()
        assert len(worker.aborts) == tries or route not in GENERATE
        assert await gw.in_flight() == 1
        stays.leave()
        await gw.idle()
        worker.behaviour = good
        assert (await gw.ask(route)).status_code == 200
        assert len(worker.calls) == tries + 2


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_five_hundred_clients_that_leave_together_leave_nothing_behind(
    gw: Gateway, route: Route
) -> None:
    async with gw.fleet(route.kind, 2, silent) as fleet:
        clients = [await RawClient.connect(gw.port) for _ in range(500)]
        for client in clients:
            client.request(route.path, route.body())
        await until(lambda: sum(len(worker.calls) for worker in fleet) == 500)
        for index, client in enumerate(clients):
            client.leave(reset=index % 2 == 0)
        calls = [call for worker in fleet for call in worker.calls]
        await until(lambda: all(call.gone.is_set() for call in calls))
        await gw.idle()
        assert sum(len(worker.calls) for worker in fleet) == 500


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_client_that_leaves_while_no_worker_is_there_is_never_sent_on(
    tmp_path: Path, route: Route
) -> None:
    """The worker registers after the client has disconnected."""
    async with gateway(tmp_path / "log", "--queue-seconds", "60") as patient:

        async def queued(count: int) -> None:
            async def check() -> bool:
                return await patient.metric("dynamo_frontend_held_requests") == count

            await eventually(check)

        client = await RawClient.connect(patient.port)
        client.request(route.path, route.body())
        await queued(1)
        client.leave()
        await queued(0)
        async with patient.fleet(route.kind, 1) as (worker,):
            assert (await patient.ask(route)).status_code == 200
            assert len(worker.calls) == 1


async def test_control_call_whose_caller_left_is_not_repeated(gw: Gateway) -> None:
    """Each worker got the call once, and its reply does not disturb the next call."""
    async with gw.fleet("sglang") as fleet:
        client = await RawClient.connect(gw.port)
        client.request("/flush_cache", b"")
        await until(lambda: all(worker.requests_to("/flush_cache") for worker in fleet))
        client.leave(reset=True)
        assert (await gw.client.get("/workers")).status_code == 200
        assert [len(worker.requests_to("/flush_cache")) for worker in fleet] == [1, 1]
