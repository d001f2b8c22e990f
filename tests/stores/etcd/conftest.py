"""One server for all tests that leave it as it is, each with a prefix of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from gateway.stores.etcd.client import EtcdAccess
from gateway.stores.etcd.store import EtcdStore
from tests.stores.contract import Open
from tests.stores.etcd import cluster
from tests.stores.etcd.cluster import Member

#: For writes that have to wait for a disk which other tests keep busy.
PATIENCE = 20.0

Opened = Callable[..., EtcdStore]


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster.running(tmp_path_factory.mktemp("etcd")) as member:
        yield member


@pytest.fixture
def prefix() -> str:
    return f"/test/{uuid4()}"


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    """Opens stores that are closed after the test."""
    async with AsyncExitStack() as stack:

        def opened(
            *endpoints: str, prefix: str = "/test", write_timeout: float = PATIENCE, **access: object
        ) -> EtcdStore:
            given = EtcdAccess(endpoints, **access)  # type: ignore[arg-type]
            store = EtcdStore(given, prefix, write_timeout=write_timeout)
            stack.push_async_callback(store.close)
            return store

        yield opened


@pytest.fixture
def open_store(shared_etcd: Member, prefix: str, opened: Opened) -> Open:
    return lambda: opened(shared_etcd.url, prefix=prefix)
