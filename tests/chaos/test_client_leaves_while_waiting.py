"""A client that gives up before its reply frees its worker at once, whatever it was waiting for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.dialects import GENERATE, ROUTES, Route, named
from tests.chaos.gateways import Gateway, gateway_at
from tests.chaos.worker import Call, Worker, good, silent, workers
from tests.clients.site import gateway_process
from tests.support.gateway import RawClient, eventually, until

#: Within which a worker must learn that a client left, in seconds.
NOTICE = 1.0


async def sleepy(call: Call) -> None:
    """Half a minute of work, then the answer."""
    await asyncio.sleep(30)
    await good(call)


async def headed(call: Call) -> None:
    """The head at once, and then as long."""
    call.half()
    await asyncio.sleep(30)


async def leave_after(gw: Gateway, route: Route, worker: Worker, seconds: float, *, reset: bool) -> float:
    """Ask, wait ``seconds`` from the request's arrival, leave; when that was."""
    client = await RawClient.connect(gw.port)
    client.request(route.path, route.body())
    await until(lambda: len(worker.calls) == 1)
    await asyncio.sleep(seconds)
    left_at = time.monotonic()
    client.leave(reset=reset)
    return left_at


async def check_freed(gw: Gateway, route: Route, worker: Worker, left_at: float) -> None:
    """The worker was told in time, once; nothing is in flight; the next request works."""
    (call,) = worker.calls
    await asyncio.wait_for(call.gone.wait(), 3)
    assert call.gone_at is not None and call.gone_at - left_at < NOTICE
    await gw.idle()
    worker.behave = good
    reply = await gw.client.post(route.path, json=route.question())
    assert reply.status_code == 200
    assert len(worker.calls) == 2


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_client_that_gives_up_after_a_second_frees_its_worker(gw: Gateway, route: Route) -> None:
    """And three seconds later nobody has sent the request again."""
    async with workers(route.kind, 1, sleepy) as (worker,):
        await gw.serve(worker)
        left_at = await leave_after(gw, route, worker, 1.0, reset=False)
        await asyncio.wait_for(worker.calls[0].gone.wait(), 3)
        await asyncio.sleep(max(0.0, left_at + 3 - time.monotonic()))  # a copy would come late, if at all
        await check_freed(gw, route, worker, left_at)


@pytest.mark.parametrize("behave", [silent, headed], ids=["no-head", "half-a-reply"])
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_client_that_leaves_at_any_moment_frees_its_worker(
    gw: Gateway, route: Route, reset: bool, behave: object
) -> None:
    async with workers(route.kind, 1, headed if behave is headed else silent) as (worker,):
        await gw.serve(worker)
        left_at = await leave_after(gw, route, worker, 0.05, reset=reset)
        await check_freed(gw, route, worker, left_at)


@pytest.mark.parametrize("route", GENERATE, ids=named)
async def test_abort_names_exactly_the_request_whose_client_disconnected(gw: Gateway, route: Route) -> None:
    """The one beside it goes on."""
    async with workers(route.kind, 1, silent) as (worker,):
        await gw.serve(worker)
        stays, leaves = await RawClient.connect(gw.port), await RawClient.connect(gw.port)
        stays.request(route.path, route.body())
        await until(lambda: len(worker.calls) == 1)
        leaves.request(route.path, route.body())
        await until(lambda: len(worker.calls) == 2)
        leaves.leave()
        first, second = worker.calls
        await asyncio.wait_for(second.gone.wait(), NOTICE)
        await asyncio.wait_for(second.aborted.wait(), NOTICE)
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
        await until(lambda: sum(len(worker.calls) for worker in fleet) == 500, 20)
        for index, client in enumerate(clients):
            client.leave(reset=index % 2 == 0)
        calls = [call for worker in fleet for call in worker.calls]
        await until(lambda: all(call.gone.is_set() for call in calls))
        await gw.idle()
        assert sum(len(worker.calls) for worker in fleet) == 500


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A gateway whose clients may wait for a worker."""
    log = tmp_path_factory.mktemp("patient") / "log"
    with gateway_process(log, "--queue-seconds", "30") as url:
        yield url, log


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_client_that_leaves_while_no_worker_is_there_is_never_sent_on(
    patient: tuple[str, Path], route: Route
) -> None:
    """The worker comes after it has left."""
    async with gateway_at(*patient) as held, workers(route.kind, 1) as (worker,):
        client = await RawClient.connect(held.port)
        client.request(route.path, route.body())

        async def waits() -> bool:
            return await held.metric("dynamo_frontend_held_requests") == 1

        await eventually(waits)
        client.leave()

        async def gone() -> bool:
            return await held.metric("dynamo_frontend_held_requests") == 0

        await eventually(gone)
        await held.serve(worker)
        reply = await held.client.post(route.path, json=route.question())
        assert reply.status_code == 200
        assert len(worker.calls) == 1


async def test_control_call_whose_caller_left_is_not_repeated(gw: Gateway) -> None:
    """What goes to every worker went out once; no answer of it stays in the way of the next."""
    async with workers("sglang", 2) as fleet:
        await gw.serve(*fleet)
        client = await RawClient.connect(gw.port)
        client.request("/flush_cache", b"")
        await until(lambda: all(worker.requests_to("/flush_cache") for worker in fleet))
        client.leave(reset=True)
        assert (await gw.client.get("/workers")).status_code == 200
        assert [len(worker.requests_to("/flush_cache")) for worker in fleet] == [1, 1]
