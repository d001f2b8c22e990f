"""Fixtures: one gateway with default settings for all tests of a process, with no workers before and after
each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.chaos.gateways import Gateway, gateway_at
from tests.clients.site import gateway_process


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    log = tmp_path_factory.mktemp("chaos") / "log"
    with gateway_process(log) as url:
        yield url, log


@pytest.fixture
async def gw(shared: tuple[str, Path]) -> AsyncIterator[Gateway]:
    async with gateway_at(*shared) as gateway:
        yield gateway
