"""Aborts of a request that no worker has: while the first is dialled, or between that one and the next.

What proves that a worker did not receive a request is the kernel's word. It is held back here, as connections
are, so that an abort finds the gateway in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.fleet.states import WorkerState
from gateway.loop.tcp_info import TcpInfo
from gateway.sim import Drop, Reply, SimConfig, SimServer
from gateway.upstream import receipt_proof
from tests.support.gateway import Rig, generates, rig, until
from tests.support.generate import ABORT, ID, KINDS, abort_of, body_of, finish_of

BATCH: dict[str, object] = {"input_ids": [[1, 2], [3, 4]], "rid": ["left", "right"]}


@dataclass
class Stage:
    """A request that no worker has."""

    kind: str
    gateway: Rig
    #: The worker that hung up on it, if one did, and the one that is to get it now.
    first: SimServer
    next: SimServer
    reply: asyncio.Future[httpx.Response]
    #: Set: the kernel reports that the first worker never received it, or its connection is opened.
    go_on: asyncio.Event

    async def abort(self, what: dict[str, object]) -> httpx.Response:
        return await self.gateway.client.post(ABORT[self.kind], json=what)


@asynccontextmanager
async def held(port: int) -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """Let no connection to ``port`` open before the second event is set. The first: one was asked for."""
    loop, asked, go_on = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    connect: Callable[..., Awaitable[Any]] = loop.create_connection

    async def later(factory: object, host: object = None, at: object = None, **options: object) -> Any:
        if at == port:
            asked.set()
            await go_on.wait()
        return await connect(factory, host, at, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "create_connection", later)
        yield asked, go_on


@asynccontextmanager
async def connecting(kind: str, body: dict[str, object]) -> AsyncIterator[Stage]:
    async with SimServer(kind, SimConfig(token_delay=0.01)) as sim, rig(sim.url) as gateway:
        async with held(sim.port) as (_, go_on):
            reply = asyncio.ensure_future(gateway.client.post(KINDS[kind], json=body))
            await until(lambda: gateway.app.fleet.workers[0].in_flight == 1)
            yield Stage(kind, gateway, sim, sim, reply, go_on)


@asynccontextmanager
async def unreceived(kind: str, body: dict[str, object]) -> AsyncIterator[Stage]:
    """A request that the first worker has hung up on, and a second worker that is ready to take it."""
    go_on, asked = asyncio.Event(), asyncio.Event()

    def tcp_info(transport: asyncio.BaseTransport) -> TcpInfo:
        asked.set()
        return TcpInfo(reset=go_on.is_set(), acknowledged=0)

    config = SimConfig(token_delay=0.01)
    async with SimServer(kind, config) as first, SimServer(kind, config) as second, rig(first.url) as gateway:
        first.behave(Drop(reset=False))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(receipt_proof, "tcp_info", tcp_info)
            patch.setattr(receipt_proof, "REFUSAL_WAIT", 20.0)
            reply = asyncio.ensure_future(gateway.client.post(KINDS[kind], json=body))
            await asked.wait()
            await gateway.client.post("/workers", json={"url": second.url})
            added = gateway.app.fleet.find(second.url)
            assert added is not None
            await until(lambda: added.state is WorkerState.READY)
            yield Stage(kind, gateway, first, second, reply, go_on)


@pytest.mark.parametrize("kind", KINDS)
async def test_request_that_nobody_aborts_goes_to_the_next_worker(kind: str) -> None:
    async with unreceived(kind, body_of(kind)) as stage:
        stage.go_on.set()
        assert (await stage.reply).status_code == 200
        assert len(generates(stage.next)) == 1


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "s"}], ids=["without a key", "with a key"])
@pytest.mark.parametrize("kind", KINDS)
async def test_only_worker_gets_the_request_again_on_a_new_connection_and_stays_ready(
    kind: str, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a kept connection was closed says nothing about the worker; a relayed route is no exception."""
    monkeypatch.setattr(receipt_proof, "tcp_info", lambda transport: TcpInfo(reset=True, acknowledged=0))
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, probe_interval_secs=1000) as gateway:
        for path in (KINDS[kind], "/tokenize"):
            sim.behave(Drop(reset=False), path=path)
            if path != KINDS[kind]:
                sim.behave(Reply(), path=path)
            reply = await gateway.client.post(path, json=body_of(kind), headers=headers)
            assert reply.status_code == 200, reply.text
            assert gateway.app.fleet.workers[0].state is WorkerState.READY


@pytest.mark.parametrize(
    ("kind", "what"),
    [("sglang", abort_of("sglang", "A")), ("vllm", abort_of("vllm", "A")), ("sglang", {"abort_all": True})],
)
async def test_request_that_was_aborted_goes_to_nobody_else(kind: str, what: dict[str, object]) -> None:
    """Though the abort went to a worker that knows nothing of it."""
    async with unreceived(kind, body_of(kind, 3, False, **{ID[kind]: "A"})) as stage:
        answer = await stage.abort(what)
        assert (answer.status_code, answer.json()["aborted"]) == (200, 1)
        stage.go_on.set()
        reply = await stage.reply
        assert (reply.status_code, "aborted" in reply.text) == (499, True)
        assert generates(stage.next) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_abort_while_connecting_ends_the_request_before_any_worker_has_it(kind: str) -> None:
    async with connecting(kind, body_of(kind, 3, False, **{ID[kind]: "A"})) as stage:
        answer = await stage.abort(abort_of(kind, "A"))
        assert answer.json() == {"aborted": 1, "results": [{"worker": None, "aborted": 1, "error": None}]}
        reply = await stage.reply
        assert (reply.status_code, "aborted" in reply.json()["error"]["message"]) == (499, True)
        stage.go_on.set()
        assert (await stage.gateway.client.post(KINDS[kind], json=body_of(kind))).status_code == 200
        assert len(generates(stage.next)) == 1, "only the one that came later"
        assert not stage.next.aborts


async def test_abort_that_a_dead_worker_cannot_hear_is_no_failure() -> None:
    """Of a request that it never got: it is ended, and that is all the caller wants."""
    async with unreceived("sglang", body_of("sglang", rid="A")) as stage:
        await stage.first.stop()
        async with held(stage.first.port) as (asked, connect):
            answer = asyncio.ensure_future(stage.abort(abort_of("sglang", "A")))
            await asked.wait()
            stage.go_on.set()
            assert (await stage.reply).status_code == 499
            connect.set()
            aborted = await answer
        assert (aborted.status_code, aborted.json()["results"][0]["error"]) == (200, None)
        assert generates(stage.next) == []


@pytest.mark.parametrize("moment", [connecting, unreceived])
async def test_prompt_that_was_aborted_is_aborted_at_the_next_worker(moment: Any) -> None:
    async with moment("sglang", body_of("sglang", 40, False, **BATCH)) as stage:
        assert (await stage.abort(abort_of("sglang", "left"))).json()["aborted"] == 1
        stage.go_on.set()
        assert [finish_of("sglang", item) for item in (await stage.reply).json()] == ["abort", "length"]
        assert [call.ids for call in stage.next.aborts] == [("left",)]


async def test_batch_whose_prompts_were_all_aborted_goes_to_nobody_else() -> None:
    async with unreceived("sglang", body_of("sglang", 40, False, **BATCH)) as stage:
        for name in ("left", "right"):
            await stage.abort(abort_of("sglang", name))
        stage.go_on.set()
        assert (await stage.reply).status_code == 499
        assert generates(stage.next) == []
