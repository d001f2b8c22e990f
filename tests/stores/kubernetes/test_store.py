"""The store in Kubernetes: read-only, and closed in every state."""

from __future__ import annotations

import pytest

from gateway.stores.base import ReadOnlyStore, Reset
from gateway.stores.record import WorkerRecord
from tests.stores.kubernetes.following import Site
from tests.stores.kubernetes.things import pod
from tests.support.gateway import until

pytestmark = pytest.mark.virtual_time


async def test_nothing_can_be_written(site: Site) -> None:
    """The error names Kubernetes, and nothing is sent."""
    store = site.store()
    assert not store.writable
    with pytest.raises(ReadOnlyStore, match="Kubernetes"):
        await store.put(WorkerRecord("http://a:1"), ttl=10)
    with pytest.raises(ReadOnlyStore, match="Kubernetes"):
        await store.delete("http://a:1")
    assert not site.server.asked


async def test_closing_ends_every_watch(site: Site) -> None:
    """And their connections."""
    store = site.store()
    readers = [await site.follow(store) for _ in range(2)]
    await until(lambda: site.server.watching == 2)
    await store.close()
    await until(lambda: all(reader.ended for reader in readers))
    site.cluster.put("pods", pod("a"))
    await until(lambda: site.server.watching == 0)
    assert [reader.changes for reader in readers] == [[Reset({})]] * 2
