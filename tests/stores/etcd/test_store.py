"""Records in a real etcd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.stores.base import CordonsChanged, StoreUnavailable
from gateway.stores.etcd.client import EtcdAccess, EtcdClient, within
from gateway.stores.etcd.keys import Keys
from gateway.stores.etcd.store import EtcdStore
from gateway.stores.versioned import Versioned, undated
from tests.stores.contract import ONE, SharedStoreContract
from tests.stores.etcd.cluster import Member
from tests.stores.etcd.conftest import PATIENCE
from tests.stores.watching import watching

Opened = Callable[[EtcdAccess, str], EtcdStore]


class TestContract(SharedStoreContract):
    """What every store promises."""


async def test_marks_of_a_gateway_that_knows_no_order_are_told_and_overwritten(
    shared_etcd: Member, prefix: str, opened: Opened
) -> None:
    """It adds a key without a value, and takes it away. What was said before that, written late, undoes
    neither."""
    access = EtcdAccess([shared_etcd.url])
    store, client, keys = opened(access, prefix), EtcdClient(access), Keys(prefix)
    key = {"key": keys.of_cordon(ONE.url, "held", present=True)}
    lifted, said = Versioned(7, "a", False), Versioned(8, "a", True)

    async def old(path: str, **members: Any) -> None:
        await client.call(f"/v3/kv/{path}", {**key, **members}, until=within(PATIENCE))

    def told(*expected: Versioned) -> bool:
        return [each.reasons for each in watched.changes if isinstance(each, CordonsChanged)] == [
            {"held": each} for each in expected
        ]

    async with watching(store) as watched:
        await watched.until(lambda: bool(watched.changes))
        await store.write_cordons({ONE.url: {"held": lifted}})
        await watched.until(lambda: told(lifted))
        await old("put", value="")
        await watched.until(lambda: told(lifted, undated(present=True)))
        await store.write_cordons({ONE.url: {"held": lifted}})
        async with watching(opened(access, prefix)) as later:
            await later.until(lambda: later.marks == {ONE.url: {"held"}})
        await store.write_cordons({ONE.url: {"held": said}})
        await watched.until(lambda: told(lifted, undated(present=True), said))
        await old("deleterange")
        await watched.until(lambda: told(lifted, undated(present=True), said, undated(present=False)))


async def test_mark_is_taken_away_though_etcd_lost_what_it_remembers_by(
    shared_etcd: Member, prefix: str, opened: Opened
) -> None:
    """Its data were replaced by others."""
    store = opened(EtcdAccess([shared_etcd.url]), prefix)
    there, lifted = Versioned(7, "a", True), Versioned(8, "a", False)
    await store.write_cordons({ONE.url: {"held": there, "other": lifted}})
    store._tombstone_lease = "1"
    with pytest.raises(StoreUnavailable, match="lease"):
        await store.write_cordons({ONE.url: {"held": lifted}})
    await store.write_cordons({ONE.url: {"held": lifted}})
    async with watching(store) as watched:
        await watched.until(lambda: watched.said == {ONE.url: {"held": lifted, "other": lifted}})
