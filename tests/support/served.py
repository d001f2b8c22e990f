"""A gateway in a process of its own, as a user starts it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from tests.support.gateway import eventually
from tests.support.processes import free_port, spawned


@dataclass
class Served:
    """A gateway in a process of its own."""

    process: asyncio.subprocess.Process
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"


@asynccontextmanager
async def served(*workers: str, **variables: str) -> AsyncIterator[Served]:
    """Run a gateway in front of ``workers`` and yield it once it is ready.

    Its environment are ``variables``; it listens on DYN_HTTP_PORT, by default a free port. OPEN_FILES among
    them is its limit of open files.
    """
    port = int(variables.pop("DYN_HTTP_PORT", 0)) or free_port()
    limit = int(variables.pop("OPEN_FILES", 0)) or None
    flags = [flag for worker in workers for flag in ("--worker", worker)]
    command = ("gateway", "serve", "--host", "127.0.0.1", "--port", str(port), *flags)
    async with spawned(*command, variables=variables, limit=limit) as process:
        gateway = Served(process, port, "https" if "DYN_SSL_CERTFILE" in variables else "http")

        async def ready() -> bool:
            async with httpx.AsyncClient(trust_env=False, verify=False) as client:
                try:
                    return (await client.get(gateway.url + "/ready")).status_code == 200
                except httpx.TransportError:
                    assert process.returncode is None, (await process.communicate())[1].decode()
                    return False

        await eventually(ready, 60)
        yield gateway
