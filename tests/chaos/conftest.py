"""One gateway with its default settings for all tests of a process: each finds it empty and leaves it so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.chaos.gateways import Gateway
from tests.clients.site import gateway_process, site_at


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    log = tmp_path_factory.mktemp("chaos") / "log"
    with gateway_process(log) as url:
        yield url, log


@pytest.fixture
async def gw(shared: tuple[str, Path]) -> AsyncIterator[Gateway]:
    url, log = shared
    async with site_at(url) as site:
        yield Gateway(site, log)
