"""What many tests need: a gateway on a real socket in front of simulated engines, and raw clients."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.sim import SimServer
from gateway.sim.request_log import Arrival
from gateway.testing.rig import Rig, rig, serving, until
from tests.support.processes import PATIENCE

__all__ = ["RawClient", "Rig", "arrived", "eventually", "generates", "rig", "serving", "sse", "until"]


async def eventually(check: Callable[[], Awaitable[bool]], seconds: float = 50.0) -> None:
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
    async def connect(cls, port: int, limit: int = 2**16, tls: ssl.SSLContext | None = None) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=limit, ssl=tls))

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

    async def reply(self) -> tuple[int, bytes]:
        """Status and body of a reply that has a length, or no body."""
        async with asyncio.timeout(PATIENCE):
            head = (await self.head()).lower()
            length = re.search(rb"content-length: (\d+)", head)
            return int(head[9:12]), await self.reader.readexactly(int(length[1]) if length else 0)

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


async def queued(gateway: Rig, count: int) -> None:
    """Return once ``count`` requests are queued for a worker."""

    async def shown() -> bool:
        return f"dynamo_frontend_held_requests {count}\n" in (await gateway.client.get("/metrics")).text

    await eventually(shown)


async def limit_hits(gateway: Rig) -> dict[str, int]:
    """Return limit -> how often it was reached."""
    text = (await gateway.client.get("/metrics")).text
    named = [line for line in text.splitlines() if line.startswith("dynamo_frontend_limits_hit_total{")]
    return {line.split('"')[1]: int(line.rpartition(" ")[2]) for line in named}


def all_released(gateway: Rig) -> bool:
    """Return True if no exchange is open and no worker is leased."""
    workers = gateway.app.fleet.workers
    return not gateway.app.lifecycle.open_exchanges and not any(worker.in_flight for worker in workers)
