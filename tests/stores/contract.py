"""The contract of all stores, as tests that each store inherits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.cards.values import CardValues
from gateway.stores.base import Gone, Put, Reset, Store
from gateway.stores.last_writer_wins.map import Key, Updates, Versioned
from gateway.stores.record import WorkerRecord
from tests.stores.watching import turns, watching

#: Opens a store. All stores of a test have the same records, as replicas of a gateway do.
Open = Callable[[], Store]

ONE = WorkerRecord(
    "http://10.0.0.1:30000/a%20b",
    format="sglang",
    model="Qwen/Qwen3",
    worker_type="prefill",
    bootstrap_port=8998,
    priority=-3,
    card=CardValues(vocab_size=151936),
    labels={"rack": "b4", "ünï": "☃"},
    cordoned=True,
)
TWO = WorkerRecord("https://[fd00::2]:30000")
THREE = WorkerRecord("http://10.0.0.3:8000/engines/c/")
HELD, HELD_2 = (ONE.url, "held"), (TWO.url, "held")


class StoreContract:
    """Tests of one store. A subclass has a fixture ``open_store``."""

    async def test_first_change_is_a_reset_with_all_records(self, open_store: Open) -> None:
        """A deleted one is not among them, though another one's URL begins alike."""
        store, longer = open_store(), WorkerRecord(ONE.url + "/and-more")
        for record in (ONE, TWO, longer):
            await store.put(record)
        async with watching(store, first=True) as watched:
            await turns(store, healthy=True)
        assert watched.changes == [Reset({each.url: each for each in (ONE, TWO, longer)})]
        assert (store.reason, store.writable) == ("", True)
        assert await store.delete(ONE.url)
        assert not await store.delete(ONE.url)
        async with watching(store, first=True) as watched:
            assert watched.urls == {TWO.url, longer.url}

    async def test_record_is_deleted_by_any_spelling_of_its_url(self, open_store: Open) -> None:
        """So are all records of one worker: gateways of an older version wrote one for each spelling."""
        store, spellings = open_store(), ("http://a", "http://a:80/", "HTTP://A")
        for url in (*spellings, "http://a/b"):
            await store.put(WorkerRecord(url))
        async with watching(store, first=True) as watched:
            await watched.until(lambda: len(watched.urls) == 4)
            assert await store.delete("http://A:080//")
            assert not await store.delete("http://a")
            await watched.until(lambda: watched.urls == {"http://a/b"})

    async def test_every_watch_yields_all_changes_in_order(self, open_store: Open) -> None:
        """The same record again is no change. A watch that ends does not end the others."""
        store = open_store()
        async with watching(store, first=True) as watched:
            async with watching(store) as leaves:
                await store.put(ONE)
                await leaves.knows(ONE.url)
            for change in (Put(ONE), Put(TWO), Gone(ONE.url), Put(replace(TWO, cordoned=True))):
                if isinstance(change, Put):
                    await store.put(change.record)
                else:
                    await store.delete(change.url)
                await watched.until(lambda change=change: watched.changes[-1] == change)  # type: ignore[misc]
        assert watched.records == {TWO.url: replace(TWO, cordoned=True)}
        assert len(watched.changes) == 5 and watched.resets == 1

    async def test_record_with_a_ttl_stays_until_it_is_deleted(self, open_store: Open) -> None:
        """If a busy machine delays a renewal too much, the record is registered again."""
        store = open_store()
        async with watching(store) as watched:
            await store.put(ONE, ttl=1)
            await watched.knows(ONE.url)
            await asyncio.sleep(2.5)
            await watched.knows(ONE.url)
            assert await store.delete(ONE.url)
            await watched.knows()
            await asyncio.sleep(1)
        assert not watched.urls

    async def test_close_ends_every_watch(self, open_store: Open) -> None:
        """One that begins afterwards ends at once."""
        store = open_store()
        async with watching(store, first=True) as first, watching(store, first=True) as second:
            await store.close()
            await first.until(lambda: first.ended)
            await second.until(lambda: second.ended)
        async with watching(store) as later:
            await later.until(lambda: later.ended)
        assert not later.changes


class SharedStoreContract(StoreContract):
    """Tests of a store that several processes share; each call of ``open_store`` stands for one process."""

    async def test_concurrent_writes_are_all_kept(self, open_store: Open) -> None:
        """Of records and of cordons."""
        stores = [open_store() for _ in range(3)]
        records = [WorkerRecord(f"http://10.1.0.{number}:8000") for number in range(12)]
        keys = [(ONE.url, f"reason-{number}") for number in range(12)]
        await asyncio.gather(
            *(stores[i % 3].write_cordons(entries(7, key)) for i, key in enumerate(keys)),
            *(stores[i % 3].put(record) for i, record in enumerate(records)),
        )
        async with watching(stores[0], first=True) as watched:
            assert watched.records == {record.url: record for record in records}
            assert watched.cordons == set(keys)

    async def test_put_by_another_store_keeps_the_ttl(self, open_store: Open) -> None:
        """The record expires after the store that renews it was closed; one without a TTL stays."""
        keeper, other = open_store(), open_store()
        await keeper.put(ONE)
        await keeper.put(TWO, ttl=1)
        both = {ONE.url: ONE, TWO.url: replace(TWO, cordoned=True)}
        async with watching(other) as watched:
            await other.put(both[TWO.url])
            await watched.until(lambda: watched.records == both)
            await asyncio.sleep(1.5)
            await watched.until(lambda: watched.records == both)
            await keeper.close()
            await watched.knows(ONE.url)

    async def test_record_that_another_store_deletes_is_not_registered_again(self, open_store: Open) -> None:
        keeper, other = open_store(), open_store()
        await keeper.put(ONE, ttl=1)
        async with watching(other) as watched:
            await watched.knows(ONE.url)
            assert await other.delete(ONE.url)
            await watched.knows()
            await asyncio.sleep(1)
        assert not watched.urls

    async def test_cordons_are_yielded_like_records_and_outlive_them(self, open_store: Open) -> None:
        """Also those of a URL without a record; each reason is added and removed by itself."""
        here, there = open_store(), open_store()
        assert here.keeps_cordons
        pause, never = (ONE.url, "paused:memory:a/b"), (ONE.url, "never")
        async with watching(there, first=True) as watched:
            await here.write_cordons(entries(7, HELD, HELD_2, pause))
            await watched.until(lambda: watched.cordons == {HELD, HELD_2, pause})
            await here.put(ONE)
            await here.delete(ONE.url)
            removed = entries(8, HELD, HELD_2, never, present=False)
            await there.write_cordons(removed)
            await watched.until(lambda: watched.cordons == {pause})
        async with watching(open_store(), first=True) as later:
            assert later.records == {}
        # Tombstones are kept for older entries that are written late.
        assert later.entries == {**entries(7, pause), **removed}

    async def test_cordon_that_an_older_gateway_spelled_otherwise_gets_each_later_write(
        self, open_store: Open
    ) -> None:
        """Or it would count again once the tombstone is gone."""
        old, key = ("HTTP://A:80/", "held"), ("http://a", "held")
        store, removed = open_store(), Versioned(8, "a", False)
        async with watching(store, first=True) as watched:
            await store.write_cordons({old: Versioned(7, "a", True)})
            await watched.until(lambda: old in watched.cordons)
            await store.write_cordons({key: removed})
            await watched.until(lambda: old not in watched.cordons)
        async with watching(open_store(), first=True) as later:
            assert not later.cordons

    @pytest.mark.parametrize("present", [True, False])
    async def test_later_entry_counts_whichever_is_written_first(
        self, open_store: Open, present: bool
    ) -> None:
        one, two = open_store(), open_store()
        later = entries(9, HELD, HELD_2, present=not present)
        await one.write_cordons({HELD: later[HELD], **entries(7, HELD_2, present=present)})
        await two.write_cordons(entries(7, HELD, present=present))
        await one.write_cordons({HELD_2: later[HELD_2]})
        async with watching(two, first=True) as watched:
            assert watched.entries == later

    async def test_cordons_of_1024_workers_are_one_write(self, open_store: Open) -> None:
        store = open_store()
        urls = [f"http://10.{number // 256}.{number % 256}.1:8000" for number in range(1024)]
        keys = [(url, "paused:generation:generation") for url in urls]
        await store.write_cordons(entries(7, *keys))
        async with watching(store) as watched:
            await watched.until(lambda: watched.cordons == set(keys))
            await store.write_cordons(entries(8, *keys, present=False))
            await watched.until(lambda: not watched.cordons)


def entries(timestamp: int, *keys: Key, present: bool = True) -> Updates:
    return {key: Versioned(timestamp, "a", present) for key in keys}
