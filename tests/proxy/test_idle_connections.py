"""Workers that close idle connections just as requests are sent on them."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.fleet.states import WorkerState
from gateway.sim import SimConfig, SimServer
from tests.support.gateway import generates, rig
from tests.support.generate import KINDS, body_of


@asynccontextmanager
async def behind_uvicorn(sim: SimServer, pauses: list[float]) -> AsyncIterator[str]:
    """Serve ``sim`` by the server of real engines, in a thread of its own; it closes what is idle for 2 s.

    ``pauses`` gets for how long each connection was idle that a request came on.
    """

    client = httpx.AsyncClient(base_url=sim.url, trust_env=False)
    idle_since: dict[tuple[str, int], float] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for word in ("startup", "shutdown"):
                await receive()
                if word == "shutdown":
                    await client.aclose()
                await send({"type": f"lifespan.{word}.complete"})
            return
        request, peer = Request(scope, receive), scope["client"]
        if peer in idle_since:
            pauses.append(time.monotonic() - idle_since[peer])
        reply = await client.request(
            request.method, request.url.path, content=await request.body(), headers=request.headers.raw
        )
        await Response(reply.content, reply.status_code, dict(reply.headers))(scope, receive, send)
        idle_since[peer] = time.monotonic()

    options = {"log_config": None, "loop": "asyncio", "timeout_keep_alive": 2}
    server = uvicorn.Server(uvicorn.Config(app, **options))  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.to_thread(thread.join)


@pytest.mark.parametrize("kind", KINDS)
async def test_each_request_of_bursts_after_pauses_is_generated_once(kind: str) -> None:
    """None comes on a connection that is about to be closed: nobody could tell whether it was read."""
    pauses: list[float] = []
    async with SimServer(kind, SimConfig()) as sim, behind_uvicorn(sim, pauses) as url, rig(url) as gateway:
        for pause in (0.2, 1.8, 1.85, 0.2, 1.9, 0):
            posts = [gateway.client.post(KINDS[kind], json=body_of(kind, 1)) for _ in range(20)]
            assert {reply.status_code for reply in await asyncio.gather(*posts)} == {200}
            await asyncio.sleep(pause)
        assert len(generates(sim)) == 6 * 20
    assert max(pauses) < 1.8


@pytest.mark.virtual_time
@pytest.mark.parametrize("limit", [0.5, 1.0, 2.0, 3.0, 5.0])
async def test_bursts_are_served_at_the_moment_at_which_idle_connections_are_closed(
    limit: float,
) -> None:
    """Of 600 requests each once, by workers of both kinds, which stay ready."""
    config = SimConfig(keep_alive=limit)
    async with AsyncExitStack() as stack:
        sims = [await stack.enter_async_context(SimServer(kind, config)) for kind in KINDS]
        gateway = await stack.enter_async_context(rig(*(sim.url for sim in sims)))
        for burst in range(10):
            posts = [gateway.client.post(KINDS[kind], json=body_of(kind, 1)) for kind in 30 * (*KINDS,)]
            assert {reply.status_code for reply in await asyncio.gather(*posts)} == {200}
            assert {worker.state for worker in gateway.app.fleet.workers} == {WorkerState.READY}
            await asyncio.sleep(limit + 0.001 * (burst % 5 - 2))
        assert [len(generates(sim)) for sim in sims] == [300, 300]
