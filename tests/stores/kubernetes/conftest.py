"""A running API server, and stores that follow it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
import trustme

from tests.stores.kubernetes.following import Site
from tests.stores.kubernetes.server import ApiServer


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    authority = trustme.CA()
    server = ApiServer(authority)
    found = Site(server, tmp_path / "ca.crt", tmp_path / "token")
    authority.cert_pem.write_to_path(str(found.certificates))
    found.token.write_text(server.token)
    await server.start()
    try:
        yield found
    finally:
        await found.close()
        await server.stop()
