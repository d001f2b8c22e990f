"""The gateway as a process, and its state as seen from outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.dialects import Route
from tests.chaos.worker import Behaviour, Worker, good, workers
from tests.clients.site import Listed, Site, gateway_process, site_at
from tests.support.gateway import eventually

ROUTING_KEY = "x-smg-routing-key"


class Gateway:
    """A running gateway. ``site`` has its operator's calls; ``log`` is the file of its output."""

    def __init__(self, site: Site, log: Path) -> None:
        self.site = site
        self.client = site.client
        self.url = site.url
        self.port = int(site.url.rsplit(":", 1)[1])
        self.log = log

    @asynccontextmanager
    async def fleet(
        self, kind: str, count: int = 2, behaviour: Behaviour = good
    ) -> AsyncIterator[list[Worker]]:
        """Start ``count`` workers, register them and wait until they are ready."""
        async with workers(kind, count, behaviour) as made:
            await self.site.serve(*made)
            yield made

    async def states(self, *workers: Listed) -> list[str]:
        listed = await self.site.workers()
        return [str(listed[worker.url]["state"]) for worker in workers]

    async def in_flight(self, *workers: Listed) -> int:
        """Return the number of requests at ``workers``, by default at all, as the gateway lists them."""
        listed = await self.site.workers()
        urls = [worker.url for worker in workers] or listed
        return sum(listed[url]["load"] for url in urls)

    async def idle(self) -> None:

        async def check() -> bool:
            return await self.in_flight() == 0

        await eventually(check)

    async def ask(self, route: Route, key: str | None = None, *, stream: bool = False) -> httpx.Response:
        """Send one request of ``route``, with a routing key if given, and return the reply."""
        headers = {} if key is None else {ROUTING_KEY: key}
        return await self.client.post(route.path, json=route.question(stream=stream), headers=headers)

    async def ask_many(self, route: Route, count: int, at_once: int = 10) -> list[int]:
        """Send ``count`` requests, ``at_once`` at a time, and return their statuses."""
        turns = asyncio.Semaphore(at_once)

        async def one() -> int:
            async with turns:
                return (await self.ask(route)).status_code

        return await asyncio.gather(*(one() for _ in range(count)))

    async def keys_of(self, route: Route, worker: Worker, count: int) -> list[str]:
        found: list[str] = []
        for number in range(50 * count):
            before, key = len(worker.calls), f"key-{number}"
            assert (await self.ask(route, key)).status_code == 200
            found += [key] if len(worker.calls) > before else []
            if len(found) == count:
                return found
        raise AssertionError(f"fewer than {count} keys")

    async def metric(self, name: str) -> float:
        text = (await self.client.get("/metrics")).text
        families = text_string_to_metric_families(text)
        return sum(each.value for family in families for each in family.samples if each.name == name)

    async def access(self, name: str) -> dict[str, Any]:
        """Return the line of the access log about the request ``name``, once it is written."""
        found: list[dict[str, Any]] = []

        async def written() -> bool:
            lines = self.log.read_text().splitlines()
            found.extend(json.loads(line) for line in lines if '"request_id"' in line and name in line)
            return bool(found)

        await eventually(written)
        return found[0]


@contextmanager
def gateway_of_module(paths: pytest.TempPathFactory, *flags: str) -> Iterator[tuple[str, Path]]:
    """Start a gateway with ``flags`` for the tests of a module; yield its URL and its log."""
    log = paths.mktemp("gateway") / "log"
    with gateway_process(log, *flags) as url:
        yield url, log


@asynccontextmanager
async def gateway_at(url: str, log: Path) -> AsyncIterator[Gateway]:
    """Yield a gateway that tests share; it has no workers before and after each."""
    async with site_at(url) as site:
        yield Gateway(site, log)


@asynccontextmanager
async def gateway(log: Path, *flags: str, before: Sequence[str] = ()) -> AsyncIterator[Gateway]:
    """Start a gateway with ``flags`` for one test. ``before`` is put before its command."""
    with gateway_process(log, *flags, before=before) as url:
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
            yield Gateway(Site(url, client), log)


async def best_of_five(measure: Callable[[], Awaitable[float]], bound: float) -> int:
    """Check that a measurement is within ``bound`` at least once in five tries; return how many it took.

    Other processes of a busy machine may delay any of them.
    """
    measured: list[float] = []
    while len(measured) < 5 and min(measured, default=bound) >= bound:
        measured.append(await measure())
    assert min(measured) < bound
    return len(measured)
