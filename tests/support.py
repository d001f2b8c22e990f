"""What many tests need: a gateway on a real socket in front of simulated engines, and raw clients."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from gateway.app import Gateway, create_app
from gateway.fleet.worker import WorkerState
from gateway.server import listen, server_config
from gateway.settings import Settings
from gateway.sim import SimServer
from gateway.sim.arrivals import Arrival


@asynccontextmanager
async def serving(app: Gateway, settings: Settings) -> AsyncIterator[str]:
    """``app`` on a free port of the loopback, as the product serves it; its base URL."""
    listener = listen("127.0.0.1", 0, 4096)
    server = uvicorn.Server(server_config(app, settings))
    started = asyncio.Event()
    task = asyncio.get_running_loop().create_task(_serve(server, listener, started))
    try:
        await started.wait()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def _serve(server: uvicorn.Server, listener: socket.socket, started: asyncio.Event) -> None:
    startup = server.startup

    async def noted(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = noted  # type: ignore[method-assign]
    await server._serve([listener])


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
    """A gateway in front of ``workers`` (URLs), ready to serve all of them."""
    given = {"access_log": False, "probe_interval_secs": 0.2, "port": 0, **settings}
    chosen = Settings(worker=workers, **given)
    app = create_app(chosen)
    async with serving(app, chosen) as url:
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
            await until(lambda: all(w.state is not WorkerState.JOINING for w in app.fleet.workers))
            yield Rig(app, url, client)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Return once ``condition`` holds; fail after ``seconds``."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def eventually(check: Callable[[], Awaitable[bool]], seconds: float = 10.0) -> None:
    """Return once ``check`` answers True; fail after ``seconds``."""
    async with asyncio.timeout(seconds):
        while not await check():  # noqa: ASYNC110 - nor has this
            await asyncio.sleep(0.02)


class RawClient:
    """A client on a bare socket: it sends what it is told and leaves how it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, limit: int = 2**16) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=limit))

    def request(
        self, path: str, body: bytes, *, method: str = "POST", headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Write one request in full."""
        lines = [f"{method} {path} HTTP/1.1", "host: gateway", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines += [f"content-length: {len(body)}", "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)

    async def head(self) -> bytes:
        """Status line and headers of the reply."""
        return await self.reader.readuntil(b"\r\n\r\n")

    def leave(self, *, reset: bool = False) -> None:
        """Hang up: a FIN, or a RST."""
        if reset:
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()


def sse(body: bytes) -> list[Any]:
    """The data of each event of a stream, parsed, without ``[DONE]``."""
    payloads = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
    return [json.loads(payload) for payload in payloads if payload != b"[DONE]"]


def generates(*sims: SimServer) -> list[Arrival]:
    """The generate requests that clients sent; a probe's empty object is none."""
    return [arrival for sim in sims for arrival in sim.log if arrival.body != b"{}"]


async def arrived(count: int, *sims: SimServer) -> None:
    """Return once ``count`` generate requests of clients have arrived in all."""
    await until(lambda: sum(arrival.arrived is not None for arrival in generates(*sims)) >= count)
