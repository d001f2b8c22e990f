"""A format that breaks its contract harms its own request only, whichever build runs.

The compiled build checks types where they are handed over, pure Python finds out where they are used: then
the reply may have begun, and is cut.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.catalog import Endpoint
from gateway.formats.contract import (
    Reader,
    ReplyFacts,
)
from gateway.formats.sglang import SglangFormat
from gateway.settings import Settings
from gateway.sim import Drop, SimServer
from gateway.wiring.app import create_app
from gateway.wiring.gateway import Gateway
from tests.support.gateway import serving, until
from tests.support.generate import body_of

Break = Callable[[Any], Any]


class BrokenReader:
    """A reader, but for what one of its members returns; like a plugin's, it is not compiled."""

    def __init__(self, reader: Reader, member: str, wrong: Break) -> None:
        self._reader = reader
        self._wrong = {member: wrong}
        self._finished = False
        self.streaming = reader.streaming
        self.identity = reader.identity

    def _spoilt(self, member: str, right: Any) -> Any:
        return self._wrong[member](right) if member in self._wrong else right

    @property
    def facts(self) -> ReplyFacts:
        facts = self._reader.facts
        return self._spoilt("facts_of_all", facts) if self._finished else facts

    def feed(self, data: bytes) -> bytes:
        return self._spoilt("feed", self._reader.feed(data))  # type: ignore[no-any-return]

    def finish(self) -> bytes:
        out = self._reader.finish()
        self._spoilt("facts", self.facts)
        self._finished = True
        return self._spoilt("finish", out)  # type: ignore[no-any-return]

    def fail(self, error: Any) -> bytes:
        return self._reader.fail(error)


def broken(member: str, wrong: Break) -> SglangFormat:
    """The format, but for what one of its members, or of its readers' members, returns."""
    format, target, spoil = SglangFormat(), member, wrong
    if not hasattr(format, member):
        target, spoil = "reader", lambda reader: BrokenReader(reader, member, wrong)
    right = getattr(format, target)
    setattr(format, target, lambda *given: spoil(right(*given)))
    return format


def fact(name: str, value: object) -> Break:
    return lambda facts: setattr(facts, name, value)


def raises(error: Exception) -> Break:
    def wrong(right: Any) -> Any:
        raise error

    return wrong


BEFORE_A_REPLY = ("no-projection", "no-request", "body-that-is-text", "no-reader")
FAULTS: dict[str, tuple[str, Break]] = {
    "no-projection": ("project", lambda _: None),
    "ids-that-are-bytes": ("project", lambda right: right._replace(ids=(b"a",))),
    "no-request": ("upstream", lambda _: None),
    "body-that-is-text": ("upstream", lambda right: right._replace(body=right.body.decode())),
    "header-that-is-text": ("upstream", lambda right: right._replace(headers=[("a", "b")])),
    "no-reader": ("reader", lambda _: None),
    "text-for-bytes": ("finish", lambda right: right.decode()),
    "nothing-for-bytes": ("finish", lambda _: None),
    "text-for-tokens": ("facts", fact("tokens", "3")),
    "text-for-prompt-tokens": ("facts", fact("prompt_tokens", "3")),
    "text-for-cached-tokens": ("facts", fact("cached_tokens", "3")),
    "number-for-a-reason": ("facts", fact("finish_reasons", [3])),
    "nothing-for-reasons": ("facts", fact("finish_reasons", None)),
    "facts-that-raise": ("facts_of_all", raises(LookupError("no facts"))),
}


@asynccontextmanager
async def gateway_of(format: SglangFormat, worker: str) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    settings = Settings(worker=(worker,), access_log=False, probe_interval_secs=0.2, port=0)
    paths = {"/generate": format, "/good": SglangFormat()}
    app = create_app(settings, catalog=[Endpoint(path, ("POST",), of) for path, of in paths.items()])
    async with serving(app, settings) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        await until(lambda: bool(app.fleet.usable(format.capability)))
        yield app, client


async def answer(client: httpx.AsyncClient, body: object) -> httpx.Response | None:
    """The reply, None for one that was cut."""
    try:
        return await client.post("/generate", json=body)
    except httpx.RemoteProtocolError:
        return None


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_format_that_breaks_its_contract_harms_its_own_request_only(fault: str, stream: bool) -> None:
    """What is not a reply is a 500 in the dialect, or is cut; nothing stays taken, and others are served."""
    body = body_of("sglang", 2, stream)
    async with SimServer("sglang") as sim, gateway_of(broken(*FAULTS[fault]), sim.url) as (app, client):
        reply = await answer(client, body)
        if fault in BEFORE_A_REPLY or (reply is not None and reply.status_code != 200):
            assert reply is not None and reply.status_code == 500
            assert reply.json() == {"error": {"message": "internal error of the gateway"}}
        await until(lambda: app.lifecycle.open_exchanges == 0)
        assert [worker.in_flight for worker in app.fleet.workers] == [0]
        assert (await client.post("/good", json=body)).status_code == 200


async def test_failure_that_cannot_be_rendered_closes_the_connection() -> None:
    """Else its client would wait until it gives up: what fails then runs in a callback of the worker's."""
    format = broken("render", raises(ZeroDivisionError()))
    async with SimServer("sglang") as sim, gateway_of(format, sim.url) as (app, client):
        sim.behave(Drop())
        assert await answer(client, body_of("sglang", 2)) is None
        assert app.lifecycle.open_exchanges == 0


async def test_request_that_cannot_be_made_costs_no_connection() -> None:
    format = broken("upstream", raises(ZeroDivisionError()))
    async with SimServer("sglang") as sim, gateway_of(format, sim.url) as (app, client):
        [worker] = app.fleet.workers
        for path, status in (("/good", 200), ("/generate", 500)):
            assert (await client.post(path, json=body_of("sglang", 2))).status_code == status
            assert (worker.pool.idle, worker.in_flight) == (1, 0)
