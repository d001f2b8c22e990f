"""The tests of this folder run on uvloop and on asyncio's own loop, or in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio
import uvloop

from tests.support.virtual_time import VirtualTimeLoop
from tests.upstream.peer import Listener, listening


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual_time": VirtualTimeLoop}
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.SelectorEventLoop}


@pytest_asyncio.fixture
async def listener() -> AsyncIterator[Listener]:
    async with listening() as found:
        yield found
