"""Fixtures: one gateway for all tests of a process, with no workers before and after each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.clients.site import Site, gateway_process, site_at


@pytest.fixture(scope="session")
def gateway_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("gateway") / "log"
    with gateway_process(log, "--probe-interval-secs", "0.2") as url:
        yield url


@pytest.fixture
async def site(gateway_url: str) -> AsyncIterator[Site]:
    async with site_at(gateway_url) as site:
        yield site


@pytest.fixture(scope="session")
def queueing_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a gateway that queues requests while no worker is ready, for clients that retry nothing."""
    log = tmp_path_factory.mktemp("holding") / "log"
    with gateway_process(log, "--probe-interval-secs", "0.2", "--queue-seconds", "20") as url:
        yield url


@pytest.fixture
async def queueing_site(queueing_url: str) -> AsyncIterator[Site]:
    async with site_at(queueing_url) as site:
        yield site
