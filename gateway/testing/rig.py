"""A gateway on a real socket, served as in production.

Owns: starting it for a test, waiting until its workers are probed, stopping it. Must never enter: a dialect,
a worker, an expectation.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from gateway.downstream.tls import TlsServer
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.process.server import listen, server_config
from gateway.settings import Settings
from gateway.wiring.app import create_app
from gateway.wiring.gateway import Gateway


@dataclass(frozen=True)
class Rig:
    """A running gateway, its address and a client for it."""

    app: Gateway
    url: str
    client: httpx.AsyncClient

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


@asynccontextmanager
async def rig(*workers: str, **settings: Any) -> AsyncIterator[Rig]:
    """Run a gateway with ``workers`` (URLs) and ``settings`` (fields of Settings).

    Yields once all workers are probed.
    """
    given = {"access_log": False, "probe_interval_secs": 0.2, "port": 0, **settings}
    chosen = Settings(worker=workers, **given)
    app = create_app(chosen)
    async with serving(app, chosen) as url:
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, verify=False) as client:
            await until(lambda: all(map(_known, app.fleet.workers)))
            yield Rig(app, url, client)


@asynccontextmanager
async def serving(app: Gateway, settings: Settings) -> AsyncIterator[str]:
    """Serve ``app`` on a free loopback port and yield its base URL."""
    listener = listen("127.0.0.1", 0, 4096)
    server = TlsServer(server_config(app, settings))
    started = asyncio.Event()
    task = asyncio.get_running_loop().create_task(_serve(server, listener, started))
    try:
        await started.wait()
        scheme = "http" if settings.ssl_certfile is None else "https"
        yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def _known(worker: Worker) -> bool:
    """Return True once the probes have identified the worker, even as one that cannot serve."""
    if worker.state is not WorkerState.JOINING:
        return True
    probed = bool(worker.infos) and "not probed yet" not in worker.reason
    return probed or "does not speak" in worker.reason


async def until(condition: Callable[[], bool], seconds: float = 50.0) -> None:
    """Return once ``condition()`` is true. Raise TimeoutError after ``seconds``."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def _serve(server: uvicorn.Server, listener: socket.socket, started: asyncio.Event) -> None:
    startup = server.startup

    async def noted(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = noted  # type: ignore[method-assign]
    await server._serve([listener])
