"""The surroundings of the scripted clients: a gateway in its own process, and the engines of one test.

Owns: the gateway, an operator's calls, and what engines received. Must never enter: a framework's calls.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx

from gateway.sim import SimConfig, SimServer
from gateway.sim.request_log import Arrival
from tests.support.gateway import eventually
from tests.support.processes import PATIENCE, free_port

PROMPT = [432, 402, 5]
#: Tokens of a reply in most tests, of one that runs while a test does something else, and of one that a test
#: does not wait for.
TOKENS, BUSY, LONG = 6, 400, 8000
#: A proxy for external traffic, as a site may configure it; nothing listens there.
_PROXIES = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), "http://127.0.0.1:9")


@contextmanager
def gateway_process(log: Path, *flags: str, before: Sequence[str] = ()) -> Iterator[str]:
    """Run ``tito-gateway serve`` without workers; yield its URL once it serves. ``before`` precedes the
    command.
    """
    port = free_port()
    serve = [sys.executable, "-m", "gateway", "serve", "--host", "127.0.0.1", "--port", str(port), *flags]
    command = [*before, *serve]
    own = {name: value for name, value in os.environ.items() if not name.startswith("DYN_")}  # noqa: TID251
    environment = {**own, **_PROXIES}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
        try:
            _await_life(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _await_life(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + PATIENCE
    with httpx.Client(trust_env=False, verify=False) as client:
        while time.monotonic() < end:
            assert process.poll() is None, log.read_text()
            try:
                if client.get(f"{url}/live").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.02)
    raise AssertionError(f"no life within {PATIENCE} s: {log.read_text()}")


class Listed(Protocol):
    """A worker with a URL."""

    @property
    def url(self) -> str: ...


class Engine(Listed, Protocol):
    """A simulated or a real engine."""

    async def holds(self, count: int) -> None:
        """Return once the engine has exactly ``count`` requests, running or queued; fail if it never has."""


#: Starts engines of a kind that are not registered yet: a real fleet may have fewer than are asked for.
EnginesOf = Callable[[str, int], Awaitable[Sequence[Engine]]]


class Sim(SimServer):
    """A simulated engine."""

    async def holds(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.until(lambda: self.running + self.waiting == count)


class Site:
    """The gateway at ``url`` as its operator sees it; ``client`` is the operator's."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.url = url
        self.client = client

    async def workers(self) -> dict[str, dict[str, Any]]:
        """Return the entries of the worker list by URL."""
        listed = (await self.client.get("/workers")).raise_for_status().json()
        return {entry["url"]: entry for entry in listed["workers"]}

    async def ready(self, *sims: Listed | str) -> None:
        """Return once each of ``sims``, or of their URLs, is ready."""
        urls = [sim if isinstance(sim, str) else sim.url for sim in sims]

        async def check() -> bool:
            workers = await self.workers()
            return all(workers.get(url, {}).get("state") == "ready" for url in urls)

        await eventually(check)

    async def serve(self, *sims: Listed) -> None:
        """Register ``sims``, in tests where no framework does it, and wait until they are ready."""
        for sim in sims:
            (await self.client.post("/workers", json={"url": sim.url})).raise_for_status()
        await self.ready(*sims)

    async def queues(self, count: int) -> None:
        """Return once the gateway has ``count`` requests for which there is no worker."""

        async def check() -> bool:
            return f"dynamo_frontend_held_requests {count}\n" in (await self.client.get("/metrics")).text

        await eventually(check)

    @asynccontextmanager
    async def engines(self, kind: str, count: int = 2, **knobs: Any) -> AsyncIterator[list[Sim]]:
        """Start ``count`` engines with the same ``knobs`` (fields of SimConfig), and register them."""
        async with engines(kind, count, **knobs) as sims:
            await self.serve(*sims)
            yield sims

    async def clear(self) -> None:
        """Remove all workers and wait until they are gone."""
        for entry in (await self.workers()).values():
            await self.client.delete(f"/workers/{entry['id']}")

        async def empty() -> bool:
            return not await self.workers()

        await eventually(empty)


@asynccontextmanager
async def site_at(url: str) -> AsyncIterator[Site]:
    """Yield the site of a shared gateway, which has no workers before and after each test."""
    async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False, verify=False) as client:
        site = Site(url, client)
        assert await site.workers() == {}, "left behind by another test"
        try:
            yield site
        finally:
            await site.clear()


@asynccontextmanager
async def engines(kind: str, count: int = 2, **knobs: Any) -> AsyncIterator[list[Sim]]:
    """Start ``count`` engines with the same ``knobs`` (fields of SimConfig), without registering them."""
    async with AsyncExitStack() as stack:
        servers = [Sim(kind, SimConfig(**{"model": "tiny", **knobs})) for _ in range(count)]
        for server in servers:
            await stack.enter_async_context(server)
        yield servers


def seen(*sims: SimServer) -> list[Arrival]:
    """Return the generate requests of clients at ``sims``; a probe has an empty object as its body."""
    return [arrival for sim in sims for arrival in sim.log if arrival.body != b"{}"]


def calls(sim: SimServer, path: str) -> list[Arrival]:
    """Return the requests to ``path``, oldest first."""
    return [one for one in sim.all_requests if one.target.partition(b"?")[0] == path.encode()]


def as_sent(arrival: Arrival, sent: Collection[bytes]) -> bytes:
    """Return the body, which is one of ``sent`` but for an id that the gateway added at the front."""
    return arrival.body if arrival.body in sent else re.sub(rb'^{"rid":"\w{32}",', b"{", arrival.body)
