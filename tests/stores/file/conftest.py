"""Fixtures of the file store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.stores.file.store import FileStore
from tests.stores.contract import Open

#: Seconds for a write to a disk that other tests keep busy.
PATIENCE = 20.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "workers.json"


@pytest.fixture
async def open_store(path: Path) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        def open_store() -> FileStore:
            store = FileStore(path, write_timeout=PATIENCE)
            stack.push_async_callback(store.close)
            return store

        yield open_store
