"""Records and cordons in a real etcd, and where they lie in it."""

from __future__ import annotations

from base64 import b64encode

import pytest

from gateway.stores.base import CordonsChanged, Put, StoreUnavailable
from gateway.stores.etcd.keys import Keys
from gateway.stores.etcd.store import EtcdStore
from gateway.stores.last_writer_wins.map import Versioned, undated
from tests.stores.contract import HELD, ONE, TWO, Open, SharedStoreContract
from tests.stores.etcd.cluster import Member
from tests.stores.watching import watching

OTHER = (ONE.url, "other")


class TestContract(SharedStoreContract):
    """What every store promises."""


async def test_cordons_of_a_gateway_that_knows_no_versions_are_read_and_overwritten(
    shared_etcd: Member, prefix: str, open_store: Open
) -> None:
    """It adds a key without a value, and deletes it. An older entry that is written late undoes neither."""
    store, key = open_store(), Keys(prefix).of_cordon(HELD, present=True)
    removed, present = Versioned(7, "a", False), Versioned(8, "a", True)
    steps = [removed, undated(present=True), present, undated(present=False)]

    async with watching(store, first=True) as watched:

        async def yielded(count: int) -> None:
            expected = [CordonsChanged({HELD: each}) for each in steps[:count]]
            await watched.until(lambda: watched.changes[1:] == expected)

        await store.write_cordons({HELD: removed})
        await yielded(1)
        shared_etcd.call("kv/put", key=key, value="")
        await yielded(2)
        await store.write_cordons({HELD: removed})
        async with watching(open_store(), first=True) as later:
            assert later.cordons == {HELD}
        await store.write_cordons({HELD: present})
        await yielded(3)
        shared_etcd.call("kv/deleterange", key=key)
        await yielded(4)


async def test_cordon_is_removed_though_etcd_lost_the_lease_of_tombstones(open_store: Open) -> None:
    """The data of the cluster was replaced."""
    store = open_store()
    assert isinstance(store, EtcdStore)
    present, removed = Versioned(7, "a", True), Versioned(8, "a", False)
    await store.write_cordons({HELD: present, OTHER: removed})
    store._tombstone_lease = "1"
    with pytest.raises(StoreUnavailable, match="lease"):
        await store.write_cordons({HELD: removed})
    await store.write_cordons({HELD: removed})
    async with watching(store, first=True) as watched:
        assert watched.entries == {HELD: removed, OTHER: removed}


async def test_value_that_is_not_a_record_is_ignored(
    shared_etcd: Member, prefix: str, open_store: Open
) -> None:
    """A record that becomes invalid is gone until it is mended."""
    store, keys = open_store(), Keys(prefix)
    shared_etcd.call("kv/put", key=keys.of("http://x:1"), value=_base64("{not json"))
    shared_etcd.call("kv/put", key=keys.of(""))
    async with watching(store, first=True) as watched:
        await store.put(TWO)
        for value in ("", "{", "[]", TWO.to_json()):
            await store.put(ONE)
            await watched.knows(ONE.url, TWO.url)
            shared_etcd.call("kv/put", key=keys.of(ONE.url), value=_base64(value))
            await watched.knows(TWO.url)
    assert watched.changes[1] == Put(TWO)


def test_range_holds_the_keys_of_one_deployment_and_no_other() -> None:
    keys = Keys("/a/")
    assert keys.all == {"key": _base64("/a/lifted/"), "range_end": _base64("/a/workers0")}
    assert keys.of("http://x:1") == _base64("/a/workers/http://x:1")
    assert Keys("/a").all == keys.all


def test_mark_and_url_are_read_as_they_were_written() -> None:
    """Whatever is in them; a record's key is no mark's."""
    keys = Keys("/a")
    for reason in ("held", "paused:memory:a/b%2F c", "waived:ünï"):
        for there in (True, False):
            key, _ = keys.decode({"key": keys.of_cordon((ONE.url, reason), present=there)})
            assert keys.parse_cordon(key) == ((ONE.url, reason), there)
    assert keys.parse_cordon(keys.decode({"key": keys.of(ONE.url)})[0]) is None


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()
