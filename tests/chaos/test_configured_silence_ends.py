"""A silence that is longer than was configured ends the request, at its client and at its engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.chaos.dialects import DONE, ROUTES, Route, named
from tests.chaos.gateways import Gateway, gateway_at
from tests.chaos.worker import Behaviour, Call, Worker, silent, wants_stream, workers
from tests.clients.site import gateway_process

LIMIT = 3.0


async def headed(call: Call) -> None:
    """The head of a stream, or half of a whole reply; then nothing."""
    if wants_stream(call):
        call.stream()
        call.event()
    else:
        call.half()
    await asyncio.Event().wait()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A gateway that waits three seconds for anything of a reply."""
    log = tmp_path_factory.mktemp("impatient") / "log"
    flags = ("--first-byte-timeout-secs", str(LIMIT), "--idle-timeout-secs", str(LIMIT))
    with gateway_process(log, *flags) as url:
        yield url, log


async def refused(gw: Gateway, route: Route, fleet: list[Worker], *, stream: bool) -> httpx.Response:
    """The reply, in time, to a request whose worker falls silent. The worker was left, no other was asked."""
    await gw.serve(*fleet)
    began = time.monotonic()
    reply = await gw.client.post(route.path, json=route.question(stream=stream))
    receive = time.monotonic() - began
    assert LIMIT <= receive < LIMIT + 1
    (call,) = [call for worker in fleet for call in worker.calls]
    await asyncio.wait_for(call.gone.wait(), 1)
    await gw.idle()
    return reply


@pytest.mark.parametrize("behave", [silent, headed], ids=["no-head", "half-a-reply"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_unary_request_ends_with_a_504_after_the_configured_silence(
    impatient: tuple[str, Path], route: Route, behave: Behaviour
) -> None:
    async with gateway_at(*impatient) as gw, workers(route.kind, 2, behave) as fleet:
        reply = await refused(gw, route, fleet, stream=False)
        assert reply.status_code == 504
        assert reply.json()["error"]["message"]


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_stream_ends_with_an_error_event_after_the_configured_silence(
    impatient: tuple[str, Path], route: Route
) -> None:
    async with gateway_at(*impatient) as gw, workers(route.kind, 2, headed) as fleet:
        reply = await refused(gw, route, fleet, stream=True)
        *_, error, done, _ = reply.content.split(b"\n\n")
        assert error.startswith(b'data: {"error"') and done + b"\n\n" == DONE


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_client_may_ask_for_a_shorter_time_by_itself(gw: Gateway, route: Route) -> None:
    """By a header, where no limit is configured."""
    async with workers(route.kind, 1, silent) as (worker,):
        await gw.serve(worker)
        began = time.monotonic()
        reply = await gw.client.post(route.path, json=route.question(), headers={"x-request-timeout": "0.5"})
        assert reply.status_code == 504
        assert 0.5 <= time.monotonic() - began < 1.5
        await asyncio.wait_for(worker.calls[0].gone.wait(), 1)
        assert len(worker.calls) == 1
