"""A running API server, and stores that follow it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.stores.kubernetes.following import Site
from tests.stores.kubernetes.server import api_server


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with api_server(tmp_path) as (server, certificates, token):
        found = Site(server, certificates, token)
        try:
            yield found
        finally:
            await found.close()
