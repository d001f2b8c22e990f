"""Every test of the transport runs on both event loops: the one of production, and the standard one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest_asyncio
import uvloop

from tests.upstream.peer import Listener, listening


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.SelectorEventLoop}


@pytest_asyncio.fixture
async def listener() -> AsyncIterator[Listener]:
    async with listening() as found:
        yield found
