"""Fixtures: one gateway for all tests of a process, with no workers before and after each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack

import pytest

from tests.clients.site import EnginesOf, Sim, Site, engines, gateway_process, site_at

pytest.register_assert_rewrite("tests.clients.contract", "tests.clients.libraries")
PROBES = ("--probe-interval-secs", "0.2")


@pytest.fixture(scope="session")
def gateway_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("gateway") / "log"
    with gateway_process(log, *PROBES, "--queue-seconds", "20") as url:
        yield url


@pytest.fixture
async def site(gateway_url: str) -> AsyncIterator[Site]:
    """A gateway that queues requests while no worker is ready, for clients that retry nothing."""
    async with site_at(gateway_url) as site:
        yield site


@pytest.fixture(scope="session")
def refusing_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway_process(tmp_path_factory.mktemp("refusing") / "log", *PROBES) as url:
        yield url


@pytest.fixture
async def refusing_site(refusing_url: str) -> AsyncIterator[Site]:
    """A gateway that refuses requests while no worker is ready, as by default."""
    async with site_at(refusing_url) as site:
        yield site


@pytest.fixture
async def engines_of(site: Site) -> AsyncIterator[EnginesOf]:
    async with AsyncExitStack() as stack:

        async def start(kind: str, count: int) -> Sequence[Sim]:
            return await stack.enter_async_context(engines(kind, count, token_delay=0.003))

        yield start
