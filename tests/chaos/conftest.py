"""Fixtures: one gateway with default settings for all tests of a process, with no workers before and after
each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.chaos.gateways import Gateway, gateway_at, gateway_of_module


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    with gateway_of_module(tmp_path_factory) as found:
        yield found


@pytest.fixture
async def gw(shared: tuple[str, Path]) -> AsyncIterator[Gateway]:
    async with gateway_at(*shared) as gateway:
        yield gateway
