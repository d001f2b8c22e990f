"""A silence that is longer than the configured one ends the request, at its client and at its engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.chaos.dialects import DONE, ROUTES, Route, named
from tests.chaos.gateways import Gateway, gateway_at, gateway_of_module
from tests.chaos.worker import Behaviour, Call, Worker, silent, wants_stream, workers
from tests.support.gateway import until

LIMIT = 3.0


async def headed(call: Call) -> None:
    """Send the first event of a stream, or half of a unary reply; then nothing."""
    if wants_stream(call):
        call.stream()
        call.event()
    else:
        call.half()
    await asyncio.Event().wait()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A gateway that waits three seconds for each part of a reply."""
    flags = ("--first-byte-timeout-secs", str(LIMIT), "--idle-timeout-secs", str(LIMIT))
    with gateway_of_module(tmp_path_factory, *flags) as found:
        yield found


async def reply_after_silence(
    gw: Gateway, route: Route, fleet: list[Worker], limit: float, *, stream: bool = False, **headers: str
) -> httpx.Response:
    """Return the reply to a request whose worker falls silent. Its worker is released, no other is tried."""
    await gw.serve(*fleet)
    began = time.monotonic()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = await gw.client.post(route.path, json=route.question(stream=stream), headers=names)
    assert time.monotonic() - began >= limit
    (call,) = [call for worker in fleet for call in worker.calls]
    await until(call.gone.is_set)
    await gw.idle()
    return reply


@pytest.mark.parametrize("behave", [silent, headed], ids=["no-head", "half-a-reply"])
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_unary_request_ends_with_a_504_after_the_configured_silence(
    impatient: tuple[str, Path], route: Route, behave: Behaviour
) -> None:
    async with gateway_at(*impatient) as gw, workers(route.kind, 2, behave) as fleet:
        reply = await reply_after_silence(gw, route, fleet, LIMIT)
        assert reply.status_code == 504
        assert reply.json()["error"]["message"]


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_stream_ends_with_an_error_event_after_the_configured_silence(
    impatient: tuple[str, Path], route: Route
) -> None:
    async with gateway_at(*impatient) as gw, workers(route.kind, 2, headed) as fleet:
        reply = await reply_after_silence(gw, route, fleet, LIMIT, stream=True)
        *_, error, done, _ = reply.content.split(b"\n\n")
        assert error.startswith(b'data: {"error"') and done + b"\n\n" == DONE


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_client_may_ask_for_a_shorter_time_by_itself(gw: Gateway, route: Route) -> None:
    """A header sets the limit where none is configured."""
    async with workers(route.kind, 2, silent) as fleet:
        reply = await reply_after_silence(gw, route, fleet, 0.5, x_request_timeout="0.5")
        assert reply.status_code == 504
