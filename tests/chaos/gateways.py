"""The gateway as its user starts it, and what can be seen of it from outside.

Owns: its process, its fleet, its books (in flight, sockets, log lines, memory). Must never enter: what is
right, workers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.worker import Worker
from tests.clients.site import Listed, Site, gateway_process, site_at
from tests.support.gateway import eventually

_ESTABLISHED = "01"


class Gateway:
    """``site`` is its operator's view; ``log`` holds all it has written."""

    def __init__(self, site: Site, log: Path) -> None:
        self.site = site
        self.client = site.client
        self.url = site.url
        self.port = int(site.url.rsplit(":", 1)[1])
        self.log = log

    async def serve(self, *workers: Worker) -> None:
        """Register ``workers`` and wait until they get requests."""
        await self.site.serve(*workers)

    async def states(self, *workers: Worker) -> list[str]:
        """What it thinks of ``workers``."""
        listed = await self.site.workers()
        return [str(listed[worker.url]["state"]) for worker in workers]

    async def in_flight(self, *workers: Listed) -> int:
        """Requests at ``workers``, by default at all, as it lists them."""
        listed = await self.site.workers()
        urls = [worker.url for worker in workers] or listed
        return sum(listed[url]["load"] for url in urls)

    async def idle(self) -> None:
        """Return once it has nothing in flight."""

        async def check() -> bool:
            return await self.in_flight() == 0

        await eventually(check, 5)

    async def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        text = (await self.client.get("/metrics")).text
        families = text_string_to_metric_families(text)
        return sum(each.value for family in families for each in family.samples if each.name == name)

    def lines(self, *words: str) -> list[str]:
        """Lines of its log that hold all of ``words``."""
        return [line for line in self.log.read_text().splitlines() if all(word in line for word in words)]

    async def access(self, *words: str) -> dict[str, Any]:
        """The line of its access log that holds ``words``, once it is written."""

        async def written() -> bool:
            return bool(self.lines('"request_id"', *words))

        await eventually(written)
        found: dict[str, Any] = json.loads(self.lines('"request_id"', *words)[0])
        return found


@asynccontextmanager
async def gateway_at(url: str, log: Path) -> AsyncIterator[Gateway]:
    """One that is shared by tests: empty before and after each."""
    async with site_at(url) as site:
        yield Gateway(site, log)


@asynccontextmanager
async def gateway(log: Path, *flags: str, before: Sequence[str] = ()) -> AsyncIterator[Gateway]:
    """One of a test's own, with ``flags``. ``before`` is a command that starts the gateway's."""
    with gateway_process(log, *flags, before=before) as url:
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
            yield Gateway(Site(url, client), log)


def sockets_to(worker: Worker) -> int:
    """How many connections anybody holds to ``worker``, as the system counts them."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2] == f"0100007F:{worker.port:04X}" and row[3] == _ESTABLISHED for row in rows)
