"""Aborts of a request that its worker proves not to have received, and that would go to the next one.

What proves it is the kernel's word. It is held back here, so that an abort finds the gateway between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.fleet.states import WorkerState
from gateway.sim import Drop, SimConfig, SimServer
from gateway.upstream import receipt_proof
from gateway.upstream.tcp_info import TcpInfo
from tests.support.gateway import Rig, generates, rig, until
from tests.support.generate import KINDS, body_of

ABORTS = {"sglang": "/abort_request", "vllm": "/inference/v1/abort_requests"}


def named(kind: str, name: str) -> dict[str, object]:
    return {"rid": name} if kind == "sglang" else {"request_ids": [name]}


class Stage:
    """A request that the first worker has hung up on, and a second worker that is ready to take it."""

    def __init__(
        self, gateway: Rig, kind: str, reply: Awaitable[httpx.Response], sent: asyncio.Event
    ) -> None:
        self._gateway = gateway
        self._kind = kind
        self._sent = sent
        self._reply = reply

    async def abort(self, what: dict[str, object]) -> httpx.Response:
        return await self._gateway.client.post(ABORTS[self._kind], json=what)

    async def reply(self) -> httpx.Response:
        """The reply to the request, once the kernel reports that the first worker never received it."""
        self._sent.set()
        return await self._reply


@asynccontextmanager
async def unreceived(
    kind: str, body: dict[str, object], first: SimServer, second: SimServer
) -> AsyncIterator[Stage]:
    sent, asked = asyncio.Event(), asyncio.Event()

    def tcp_info(transport: asyncio.BaseTransport) -> TcpInfo:
        asked.set()
        return TcpInfo(reset=sent.is_set(), acknowledged=0)

    async with rig(first.url) as gateway:
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
            yield Stage(gateway, kind, reply, sent)


Engines = Callable[[str], Awaitable[tuple[SimServer, SimServer]]]


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    started: list[SimServer] = []

    async def start(kind: str) -> tuple[SimServer, SimServer]:
        for _ in range(2):
            started.append(SimServer(kind, SimConfig(token_delay=0.005)))
            await started[-1].start()
        return started[0], started[1]

    yield start
    for sim in started:
        await sim.stop()


@pytest.mark.parametrize("kind", KINDS)
async def test_request_that_nobody_aborts_goes_to_the_next_worker(kind: str, engines: Engines) -> None:
    first, second = await engines(kind)
    async with unreceived(kind, body_of(kind), first, second) as stage:
        assert (await stage.reply()).status_code == 200
    assert len(generates(second)) == 1


@pytest.mark.parametrize(
    ("kind", "what"),
    [("sglang", named("sglang", "A")), ("vllm", named("vllm", "A")), ("sglang", {"abort_all": True})],
)
async def test_request_that_was_aborted_goes_to_nobody_else(
    kind: str, what: dict[str, object], engines: Engines
) -> None:
    """Though the abort went to a worker that knows nothing of it."""
    first, second = await engines(kind)
    async with unreceived(kind, body_of(kind, rid="A", request_id="A"), first, second) as stage:
        answer = await stage.abort(what)
        assert (answer.status_code, answer.json()["aborted"]) == (200, 1)
        reply = await stage.reply()
        assert (reply.status_code, "aborted" in reply.text) == (499, True)
    assert generates(second) == []


async def test_abort_that_a_dead_worker_cannot_hear_is_no_failure(engines: Engines) -> None:
    """Of a request that it never got: it is ended, and that is all the caller wants."""
    first, second = await engines("sglang")
    async with unreceived("sglang", body_of("sglang", rid="A"), first, second) as stage:
        await first.stop()
        loop = asyncio.get_running_loop()
        connect: Callable[..., Awaitable[Any]] = loop.create_connection
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def held(factory: object, host: object = None, port: object = None, **options: object) -> Any:
            if port == first.port:
                reached.set()
                await go_on.wait()
            return await connect(factory, host, port, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "create_connection", held)
            answer = asyncio.ensure_future(stage.abort(named("sglang", "A")))
            await reached.wait()
            assert (await stage.reply()).status_code == 499
            go_on.set()
            aborted = await answer
        assert (aborted.status_code, aborted.json()["results"][0]["error"]) == (200, None)
    assert generates(second) == []


async def test_prompt_that_was_aborted_is_aborted_at_the_next_worker(engines: Engines) -> None:
    """The others of its batch run there to their end."""
    first, second = await engines("sglang")
    body = body_of("sglang", 40, input_ids=[[1, 2], [3, 4]], rid=["left", "right"])
    async with unreceived("sglang", body, first, second) as stage:
        assert (await stage.abort(named("sglang", "left"))).json()["aborted"] == 1
        reply = await stage.reply()
    finished = [item["meta_info"]["finish_reason"]["type"] for item in reply.json()]
    assert finished == ["abort", "length"]
    assert [call.ids for call in second.aborts] == [("left",)]


async def test_batch_whose_prompts_were_all_aborted_goes_to_nobody_else(engines: Engines) -> None:
    first, second = await engines("sglang")
    body = body_of("sglang", 40, input_ids=[[1, 2], [3, 4]], rid=["left", "right"])
    async with unreceived("sglang", body, first, second) as stage:
        for name in ("left", "right"):
            await stage.abort(named("sglang", name))
        assert (await stage.reply()).status_code == 499
    assert generates(second) == []
