"""A burst of requests sent at once with httpx: ``python -m tests.chaos.burst URL COUNT BODY``.

Owns: the process that sends the burst, so that the test which serves it does not slow it down. Must never
enter: expectations.

httpx searches all connections of a client for each request, which for 2,000 takes longer than the burst may.
So several clients share the requests, which makes no difference to a server.
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

#: Clients, each of which sends an equal share.
CLIENTS = 20
#: The usual limit of a service.
OPEN_FILES = 8192


async def _burst(url: str, count: int, body: str) -> Counter[str]:
    """Return how often each outcome occurred."""
    share = count // CLIENTS
    limits = httpx.Limits(max_connections=share, max_keepalive_connections=share)
    headers = {"content-type": "application/json"}
    async with AsyncExitStack() as stack:
        made = [
            httpx.AsyncClient(limits=limits, timeout=None, trust_env=False, headers=headers)
            for _ in range(CLIENTS)
        ]
        clients = [await stack.enter_async_context(client) for client in made]
        requests = (_outcome(client, url, body) for client in clients for _ in range(share))
        return Counter(await asyncio.gather(*requests))


async def _outcome(client: httpx.AsyncClient, url: str, body: str) -> str:
    try:
        return str((await client.post(url, content=body)).status_code)
    except httpx.HTTPError as error:
        return type(error).__name__


async def burst(url: str, count: int, body: str) -> dict[str, int]:
    """Send a burst from its own process; return how often each status, or each error of httpx, occurred."""
    async with spawned("tests.chaos.burst", url, str(count), body) as process:
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        statuses: dict[str, int] = json.loads(out)
        return statuses


def _main(url: str, count: str, body: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    print(json.dumps(asyncio.run(_burst(url, int(count), body))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
