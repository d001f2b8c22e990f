"""Records in a real etcd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.stores.base import CordonsChanged, StoreUnavailable
from gateway.stores.etcd.client import EtcdAccess, EtcdClient, within
from gateway.stores.etcd.keys import Keys
from gateway.stores.etcd.store import EtcdStore
from gateway.stores.last_writer_wins.map import Versioned, undated
from tests.stores.contract import ONE, SharedStoreContract
from tests.stores.etcd.cluster import Member
from tests.stores.etcd.conftest import PATIENCE
from tests.stores.watching import watching

HELD, OTHER = (ONE.url, "held"), (ONE.url, "other")

Opened = Callable[[EtcdAccess, str], EtcdStore]


class TestContract(SharedStoreContract):
    """What every store promises."""


async def test_cordons_of_a_gateway_that_knows_no_versions_are_read_and_overwritten(
    shared_etcd: Member, prefix: str, opened: Opened
) -> None:
    """It adds a key without a value, and deletes it. An older entry that is written late undoes neither."""
    access = EtcdAccess([shared_etcd.url])
    store, client, keys = opened(access, prefix), EtcdClient(access), Keys(prefix)
    key = {"key": keys.of_cordon(HELD, present=True)}
    removed, present = Versioned(7, "a", False), Versioned(8, "a", True)

    async def old(path: str, **members: Any) -> None:
        await client.call(f"/v3/kv/{path}", {**key, **members}, until=within(PATIENCE))

    def yielded(*expected: Versioned) -> bool:
        changes = [each.cordons for each in watched.changes if isinstance(each, CordonsChanged)]
        return changes == [{HELD: each} for each in expected]

    async with watching(store) as watched:
        await watched.until(lambda: bool(watched.changes))
        await store.write_cordons({HELD: removed})
        await watched.until(lambda: yielded(removed))
        await old("put", value="")
        await watched.until(lambda: yielded(removed, undated(present=True)))
        await store.write_cordons({HELD: removed})
        async with watching(opened(access, prefix)) as later:
            await later.until(lambda: later.cordons == {HELD})
        await store.write_cordons({HELD: present})
        await watched.until(lambda: yielded(removed, undated(present=True), present))
        await old("deleterange")
        await watched.until(lambda: yielded(removed, undated(present=True), present, undated(present=False)))


async def test_cordon_is_removed_though_etcd_lost_the_lease_of_tombstones(
    shared_etcd: Member, prefix: str, opened: Opened
) -> None:
    """The data of the cluster was replaced."""
    store = opened(EtcdAccess([shared_etcd.url]), prefix)
    present, removed = Versioned(7, "a", True), Versioned(8, "a", False)
    await store.write_cordons({HELD: present, OTHER: removed})
    store._tombstone_lease = "1"
    with pytest.raises(StoreUnavailable, match="lease"):
        await store.write_cordons({HELD: removed})
    await store.write_cordons({HELD: removed})
    async with watching(store) as watched:
        await watched.until(lambda: watched.entries == {HELD: removed, OTHER: removed})
