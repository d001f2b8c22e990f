"""A silence that is longer than the configured one ends the request, at its client and at its engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.dialects import DONE, ROUTES, Route, named
from tests.chaos.gateways import Gateway, gateway_at, gateway_of_module
from tests.chaos.worker import Behaviour, begun, silent
from tests.support.gateway import until

LIMIT = 3.0


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A gateway that waits three seconds for each part of a reply."""
    flags = ("--first-byte-timeout-secs", str(LIMIT), "--idle-timeout-secs", str(LIMIT))
    with gateway_of_module(tmp_path_factory, *flags) as found:
        yield found


@pytest.mark.parametrize(
    ("behave", "stream"),
    [(silent, False), (begun, False), (begun, True)],
    ids=["no-head", "half-a-reply", "stream"],
)
@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_request_ends_with_a_504_or_an_error_event_after_the_configured_silence(
    impatient: tuple[str, Path], route: Route, behave: Behaviour, stream: bool
) -> None:
    """Its worker is released, and no other is tried."""
    async with gateway_at(*impatient) as gw, gw.fleet(route.kind, 2, behave) as fleet:
        began = time.monotonic()
        reply = await gw.ask(route, stream=stream)
        assert time.monotonic() - began >= LIMIT
        (call,) = [call for worker in fleet for call in worker.calls]
        await until(call.gone.is_set)
        await gw.idle()
        if stream:
            *_, error, done, _ = reply.content.split(b"\n\n")
            assert error.startswith(b'data: {"error"') and done + b"\n\n" == DONE
        else:
            assert reply.status_code == 504 and reply.json()["error"]["message"]


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_client_may_ask_for_a_shorter_time_by_itself(gw: Gateway, route: Route) -> None:
    """A header sets the limit where none is configured."""
    async with gw.fleet(route.kind, 2, silent) as fleet:
        headers = {"x-request-timeout": "0.5"}
        reply = await gw.client.post(route.path, json=route.question(), headers=headers)
        assert reply.status_code == 504
        (call,) = [call for worker in fleet for call in worker.calls]
        await until(call.gone.is_set)
