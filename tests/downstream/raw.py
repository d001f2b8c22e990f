"""Requests as bytes, and a client that sends them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.sim import SimConfig, SimServer
from tests.support.gateway import RawClient, Rig, rig
from tests.support.generate import body_of
from tests.support.processes import PATIENCE

SMALL = json.dumps(body_of("sglang", rid="r")).encode()
TYPE = "content-type: application/json"
CHUNKED = f"POST /generate HTTP/1.1\r\nhost: g\r\n{TYPE}\r\ntransfer-encoding: chunked\r\n\r\n".encode()

#: The header lines of a request that offers HTTP/2.
OFFER = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQCAAAAAAIAAAAA")


@asynccontextmanager
async def raw_client(gateway: Rig, limit: int = 2**16) -> AsyncIterator[RawClient]:
    """Open a raw client; it is closed in any case."""
    client = await RawClient.connect(gateway.port, limit)
    try:
        yield client
    finally:
        client.writer.transport.abort()


@asynccontextmanager
async def connected(**settings: Any) -> AsyncIterator[tuple[SimServer, Rig, RawClient]]:
    """Run a simulated SGLang engine, a gateway in front of it, and a raw client of the gateway."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, **settings) as gateway:
        async with raw_client(gateway) as client:
            yield sim, gateway, client


def plain(body: bytes, *lines: str, path: str = "/generate") -> bytes:
    """Return a complete request with a Content-Length."""
    head = [f"POST {path} HTTP/1.1", "host: g", TYPE, *lines, f"content-length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def reply_of(client: RawClient) -> tuple[int, bytes]:
    """Return status and body of a reply with a Content-Length."""
    async with asyncio.timeout(PATIENCE):
        head = await client.head()
        lines = head.lower().split(b"\r\n")
        length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length"))
        return int(head.split(b" ")[1]), await client.reader.readexactly(length)
