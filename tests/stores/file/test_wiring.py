"""The file store of the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import load_settings
from gateway.stores.file.store import FileStore
from gateway.wiring.file_store import file_store
from gateway.wiring.stores import STORES
from tests.stores.contract import ONE


async def test_file_of_the_settings_is_used(path: Path) -> None:
    settings = load_settings({"discovery_backend": "file", "discovery_file": str(path)})
    store = STORES["file"](settings)
    assert isinstance(store, FileStore)
    await store.put(ONE)
    assert ONE.url in path.read_text()  # noqa: ASYNC240
    await store.close()


def test_file_is_required() -> None:
    with pytest.raises(ValueError, match="no file"):
        file_store(load_settings())
