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


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster.running(tmp_path_factory.mktemp("etcd")) as member:
        yield member


@pytest.fixture
def prefix() -> str:
    return f"/test/{uuid4()}"


@pytest.fixture
async def opened() -> AsyncIterator[Callable[[EtcdAccess, str], EtcdStore]]:
    """Opens stores that are closed after the test."""
    async with AsyncExitStack() as stack:

        def opened(access: EtcdAccess, prefix: str) -> EtcdStore:
            store = EtcdStore(access, prefix, write_timeout=PATIENCE)
            stack.push_async_callback(store.close)
            return store

        yield opened


@pytest.fixture
def open_store(shared_etcd: Member, prefix: str, opened: Callable[[EtcdAccess, str], EtcdStore]) -> Open:
    return lambda: opened(EtcdAccess([shared_etcd.url]), prefix)
