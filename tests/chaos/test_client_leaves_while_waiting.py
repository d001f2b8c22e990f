"""A client that disconnects before its reply frees its worker at once, whatever it was waiting for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.dialects import GENERATE, ROUTES, Route, named
from tests.chaos.gateways import Gateway, best_of_five, gateway_at, gateway_of_module
from tests.chaos.worker import Behaviour, Call, good, silent, workers
from tests.support.gateway import RawClient, eventually, until

#: Seconds within which a worker must notice that a client disconnected: 250 ms, the gateway's promise.
NOTICE = 0.25


async def half_a_reply(call: Call) -> None:
    call.half()
    await asyncio.Event().wait()


@pytest.mark.parametrize("behave", [silent, half_a_reply], ids=["no-head", "half-a-reply"])
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_client_that_leaves_at_any_moment_frees_its_worker(
    gw: Gateway, route: Route, reset: bool, behave: Behaviour
) -> None:
    """The worker notices within 250 ms, nothing stays in flight, and the request is not sent again."""
    async with workers(route.kind, 1, behave) as (worker,):
        await gw.serve(worker)

        async def notice() -> float:
            worker.calls.clear()
            client = await RawClient.connect(gw.port)
            client.request(route.path, route.body())
            await until(lambda: len(worker.calls) == 1)
            await asyncio.sleep(0.05)  # so that the gateway has read half of a reply
            left_at = time.monotonic()
            client.leave(reset=reset)
            (call,) = worker.calls
            await until(call.gone.is_set)
            await gw.idle()
            assert call.gone_at is not None
            return call.gone_at - left_at

        await best_of_five(notice, NOTICE)
        worker.behave = good
        assert (await gw.ask(route)).status_code == 200
        assert len(worker.calls) == 2


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_abort_names_exactly_the_request_whose_client_disconnected(gw: Gateway, route: Route) -> None:
    """The request beside it continues."""
    async with workers(route.kind, 1, silent) as (worker,):
        await gw.serve(worker)
        stays, leaves = await RawClient.connect(gw.port), await RawClient.connect(gw.port)
        stays.request(route.path, route.body())
        await until(lambda: len(worker.calls) == 1)
        leaves.request(route.path, route.body())
        await until(lambda: len(worker.calls) == 2)
        leaves.leave()
        first, second = worker.calls
        await until(lambda: second.gone.is_set() and second.aborted.is_set())
        assert len(worker.aborts) == 1
        assert not first.aborted.is_set() and not first.gone.is_set()
        assert await gw.in_flight() == 1
        stays.leave()
        await gw.idle()


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_five_hundred_clients_that_leave_together_leave_nothing_behind(
    gw: Gateway, route: Route
) -> None:
    async with workers(route.kind, 2, silent) as fleet:
        await gw.serve(*fleet)
        clients = [await RawClient.connect(gw.port) for _ in range(500)]
        for client in clients:
            client.request(route.path, route.body())
        await until(lambda: sum(len(worker.calls) for worker in fleet) == 500, 30)
        for index, client in enumerate(clients):
            client.leave(reset=index % 2 == 0)
        calls = [call for worker in fleet for call in worker.calls]
        await until(lambda: all(call.gone.is_set() for call in calls), 30)
        await gw.idle()
        assert sum(len(worker.calls) for worker in fleet) == 500


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A gateway that queues requests while there is no worker."""
    with gateway_of_module(tmp_path_factory, "--queue-seconds", "30") as found:
        yield found


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_client_that_leaves_while_no_worker_is_there_is_never_sent_on(
    patient: tuple[str, Path], route: Route
) -> None:
    """The worker registers after the client has disconnected."""
    async with gateway_at(*patient) as gw, workers(route.kind, 1) as (worker,):

        async def queued(count: int) -> None:
            async def check() -> bool:
                return await gw.metric("dynamo_frontend_held_requests") == count

            await eventually(check)

        client = await RawClient.connect(gw.port)
        client.request(route.path, route.body())
        await queued(1)
        client.leave()
        await queued(0)
        await gw.serve(worker)
        assert (await gw.ask(route)).status_code == 200
        assert len(worker.calls) == 1


async def test_control_call_whose_caller_left_is_not_repeated(gw: Gateway) -> None:
    """Each worker got the call once, and its reply does not disturb the next call."""
    async with workers("sglang", 2) as fleet:
        await gw.serve(*fleet)
        client = await RawClient.connect(gw.port)
        client.request("/flush_cache", b"")
        await until(lambda: all(worker.requests_to("/flush_cache") for worker in fleet))
        client.leave(reset=True)
        assert (await gw.client.get("/workers")).status_code == 200
        assert [len(worker.requests_to("/flush_cache")) for worker in fleet] == [1, 1]
