"""A format that fails where it must not: its client is not left waiting, and nothing stays taken."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.catalog import Endpoint
from gateway.errors import GatewayError
from gateway.formats.contract import ErrorReply, Ids, UpstreamRequest, WorkerView
from gateway.formats.sglang import SglangFormat
from gateway.formats.sglang.request import SglangRequest
from gateway.settings import Settings
from gateway.sim import Drop, SimServer
from gateway.wiring.app import create_app
from gateway.wiring.gateway import Gateway
from tests.support.gateway import serving, until
from tests.support.generate import body_of


class Faulty(SglangFormat):
    """Raises what no format may raise, from the members named in ``faults``."""

    faults: frozenset[str] = frozenset()

    def upstream(self, request: SglangRequest, worker: WorkerView, ids: Ids) -> UpstreamRequest:
        if "upstream" in self.faults:
            raise ZeroDivisionError
        return super().upstream(request, worker, ids)

    def render(self, error: GatewayError) -> ErrorReply:
        if "render" in self.faults:
            raise ZeroDivisionError
        return super().render(error)


@asynccontextmanager
async def gateway_of(format: SglangFormat) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient, SimServer]]:
    async with SimServer("sglang") as sim:
        settings = Settings(worker=(sim.url,), access_log=False, probe_interval_secs=0.2, port=0)
        app = create_app(settings, catalog=[Endpoint("/generate", ("POST",), format)])
        async with serving(app, settings) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
            await until(lambda: bool(app.fleet.usable(format.capability)))
            yield app, client, sim


async def test_failure_that_cannot_be_rendered_closes_the_connection() -> None:
    """Else its client would wait until it gives up: what fails then runs in a callback of the worker's."""
    format = Faulty()
    format.faults = frozenset({"render"})
    async with gateway_of(format) as (app, client, sim):
        sim.behave(Drop())
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/generate", json=body_of("sglang", 2, False), timeout=5)
        assert app.lifecycle.open_exchanges == 0


async def test_request_that_cannot_be_made_costs_no_connection() -> None:
    format = Faulty()
    async with gateway_of(format) as (app, client, _):
        [worker] = app.fleet.workers
        assert (await client.post("/generate", json=body_of("sglang", 2, False))).status_code == 200
        assert worker.pool.idle == 1
        format.faults = frozenset({"upstream"})
        assert (await client.post("/generate", json=body_of("sglang", 2, False))).status_code == 500
        assert (worker.pool.idle, worker.in_flight) == (1, 0)
