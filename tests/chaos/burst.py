"""All requests of a burst at once, as httpx sends them: ``python -m tests.chaos.burst URL COUNT BODY``.

Owns: a process of its own, so that the burst is not slowed by who answers it. Must never enter: what is
right.

httpx looks through all connections of a client for each request, which for 2,000 takes it longer than the
whole burst should: so several clients share the work, which is all the same to a server.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections import Counter
from contextlib import AsyncExitStack

import httpx

from tests.support.processes import spawned

#: Of which each sends its share.
CLIENTS = 20
#: As a service has it whose administrator has read no manual.
OPEN_FILES = 8192


async def _burst(url: str, count: int, body: str) -> Counter[str]:
    """How often each outcome was met."""
    share = count // CLIENTS
    limits = httpx.Limits(max_connections=share, max_keepalive_connections=share)
    headers = {"content-type": "application/json"}
    async with AsyncExitStack() as stack:
        made = [
            httpx.AsyncClient(limits=limits, timeout=None, trust_env=False, headers=headers)
            for _ in range(CLIENTS)
        ]
        clients = [await stack.enter_async_context(client) for client in made]
        asking = (_outcome(client, url, body) for client in clients for _ in range(share))
        return Counter(await asyncio.gather(*asking))


async def _outcome(client: httpx.AsyncClient, url: str, body: str) -> str:
    try:
        return str((await client.post(url, content=body)).status_code)
    except httpx.HTTPError as error:
        return type(error).__name__


async def burst(url: str, count: int, body: str) -> dict[str, int]:
    """Run it in its process; how often each status, or each error of httpx, was met."""
    async with spawned("tests.chaos.burst", url, str(count), body) as process:
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        met: dict[str, int] = json.loads(out)
        return met


def _main(url: str, count: str, body: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    print(json.dumps(asyncio.run(_burst(url, int(count), body))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
