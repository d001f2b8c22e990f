"""What every store promises, whatever its records lie in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.stores.base import Gone, Put, Reset, Store
from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Versioned
from tests.stores.watching import turns, watching

#: Opens a store; all of one test have the same records.
Open = Callable[[], Store]

ONE = WorkerRecord(
    "http://10.0.0.1:30000/a%20b",
    format="sglang",
    model="Qwen/Qwen3",
    worker_type="prefill",
    bootstrap_port=8998,
    priority=-3,
    labels={"rack": "b4", "ünï": "☃"},
    held=True,
)
TWO = WorkerRecord("https://[fd00::2]:30000")
THREE = WorkerRecord("http://10.0.0.3:8000/engines/c/")


class StoreContract:
    """Tests for one kind of store: a class of its own inherits them and has a fixture ``open_store``."""

    async def test_first_change_is_a_reset_with_all_there_is(self, open_store: Open) -> None:
        store = open_store()
        await store.put(ONE)
        await store.put(TWO)
        async with watching(store) as watched:
            await watched.until(lambda: bool(watched.changes))
        assert watched.changes[0] == Reset({ONE.url: ONE, TWO.url: TWO})

    async def test_first_change_of_an_empty_store_is_an_empty_reset(self, open_store: Open) -> None:
        async with watching(open_store()) as watched:
            await watched.until(lambda: bool(watched.changes))
        assert watched.changes == [Reset({})]

    async def test_changes_are_told_in_order(self, open_store: Open) -> None:
        store = open_store()
        async with watching(store) as watched:
            await watched.until(lambda: bool(watched.changes))
            for change in (Put(ONE), Put(TWO), Gone(ONE.url), Put(replace(TWO, held=True))):
                if isinstance(change, Put):
                    await store.put(change.record)
                else:
                    await store.delete(change.url)
                await watched.until(lambda change=change: watched.changes[-1] == change)  # type: ignore[misc]
        assert watched.records == {TWO.url: replace(TWO, held=True)}
        assert len(watched.changes) == 5

    async def test_same_record_again_is_no_change(self, open_store: Open) -> None:
        store = open_store()
        async with watching(store) as watched:
            await watched.until(lambda: bool(watched.changes))
            await store.put(ONE)
            await store.put(ONE)
            await store.put(TWO)
            await watched.until(lambda: watched.urls == {ONE.url, TWO.url})
        assert watched.changes == [Reset({}), Put(ONE), Put(TWO)]

    async def test_delete_tells_whether_there_was_one(self, open_store: Open) -> None:
        store = open_store()
        await store.put(ONE)
        assert await store.delete(ONE.url)
        assert not await store.delete(ONE.url)
        assert not await store.delete("http://never.there")

    async def test_delete_takes_nothing_but_its_own_url(self, open_store: Open) -> None:
        store = open_store()
        longer = WorkerRecord(TWO.url + "/and-more")
        await store.put(TWO)
        await store.put(longer)
        await store.delete(TWO.url)
        async with watching(store) as watched:
            await watched.until(lambda: bool(watched.changes))
        assert watched.urls == {longer.url}

    async def test_every_watch_is_told_everything(self, open_store: Open) -> None:
        store = open_store()
        async with watching(store) as first, watching(store) as second:
            await first.until(lambda: bool(first.changes))
            await second.until(lambda: bool(second.changes))
            await store.put(ONE)
            await first.until(lambda: first.urls == {ONE.url})
            await second.until(lambda: second.urls == {ONE.url})

    async def test_watch_that_is_left_leaves_the_others(self, open_store: Open) -> None:
        store = open_store()
        async with watching(store) as stays:
            async with watching(store) as leaves:
                await leaves.until(lambda: bool(leaves.changes))
            await store.put(ONE)
            await stays.until(lambda: stays.urls == {ONE.url})

    async def test_many_writes_at_once_all_arrive(self, open_store: Open) -> None:
        store = open_store()
        records = [WorkerRecord(f"http://10.1.0.{number}:8000") for number in range(40)]
        async with watching(store) as watched:
            for start in range(0, len(records), 4):
                await asyncio.gather(*(store.put(record) for record in records[start : start + 4]))
            await watched.until(lambda: len(watched.urls) == len(records))
        assert watched.records == {record.url: record for record in records}

    async def test_healthy_once_it_was_read(self, open_store: Open) -> None:
        store = open_store()
        async with watching(store) as watched:
            await store.put(ONE)
            await watched.until(lambda: watched.urls == {ONE.url})
            await turns(store, healthy=True)
        assert (store.reason, store.writable) == ("", True)

    async def test_leased_record_stays_while_its_store_is_open(self, open_store: Open) -> None:
        store = open_store()
        async with watching(store) as watched:
            await store.put(ONE, ttl=1)
            await watched.until(lambda: watched.urls == {ONE.url})
            await asyncio.sleep(2.5)
        assert watched.urls == {ONE.url}

    async def test_leased_record_can_be_deleted(self, open_store: Open) -> None:
        store = open_store()
        async with watching(store) as watched:
            await store.put(ONE, ttl=1)
            await watched.until(lambda: watched.urls == {ONE.url})
            assert await store.delete(ONE.url)
            await watched.until(lambda: not watched.urls)
            await asyncio.sleep(1)
        assert not watched.urls

    async def test_close_ends_every_watch(self, open_store: Open) -> None:
        store = open_store()
        async with watching(store) as first, watching(store) as second:
            await first.until(lambda: bool(first.changes))
            await second.until(lambda: bool(second.changes))
            await store.close()
            await first.until(lambda: first.ended)
            await second.until(lambda: second.ended)

    async def test_watch_after_close_ends_at_once(self, open_store: Open) -> None:
        store = open_store()
        await store.close()
        async with watching(store) as watched:
            await watched.until(lambda: watched.ended)
        assert not watched.changes


class SharedStoreContract(StoreContract):
    """Tests for stores that several processes share: each ``open_store`` stands for one of them."""

    async def test_two_replicas_see_the_same_within_a_second(self, open_store: Open) -> None:
        here, there = open_store(), open_store()
        async with watching(here) as first, watching(there) as second:
            await first.until(lambda: bool(first.changes))
            await second.until(lambda: bool(second.changes))
            started = asyncio.get_running_loop().time()
            await here.put(ONE)
            await first.until(lambda: first.urls == {ONE.url})
            await second.until(lambda: second.urls == {ONE.url})
            assert asyncio.get_running_loop().time() - started < 1
            started = asyncio.get_running_loop().time()
            await there.delete(ONE.url)
            await first.until(lambda: not first.urls)
            await second.until(lambda: not second.urls)
            assert asyncio.get_running_loop().time() - started < 1

    async def test_records_outlive_the_store_that_wrote_them(self, open_store: Open) -> None:
        writer = open_store()
        await writer.put(ONE)
        await writer.close()
        async with watching(open_store()) as watched:
            await watched.until(lambda: watched.urls == {ONE.url})

    async def test_leased_record_goes_after_its_keeper_does(self, open_store: Open) -> None:
        keeper, other = open_store(), open_store()
        await keeper.put(TWO)
        await keeper.put(ONE, ttl=1)
        async with watching(other) as watched:
            await watched.until(lambda: watched.urls == {ONE.url, TWO.url})
            await keeper.close()
            await watched.until(lambda: watched.urls == {TWO.url}, 8)

    async def test_put_by_another_keeps_the_lease(self, open_store: Open) -> None:
        """A worker that is held, opened or registered again goes with its keeper all the same."""
        keeper, other = open_store(), open_store()
        await keeper.put(TWO, ttl=1)
        held = replace(TWO, held=True)
        async with watching(other) as watched:
            await other.put(held)
            await watched.until(lambda: watched.records == {TWO.url: held})
            await asyncio.sleep(1.5)
            assert watched.records == {TWO.url: held}
            await keeper.close()
            await watched.until(lambda: not watched.urls, 8)

    async def test_record_taken_away_by_another_stays_away(self, open_store: Open) -> None:
        keeper, other = open_store(), open_store()
        await keeper.put(ONE, ttl=1)
        async with watching(other) as watched:
            await watched.until(lambda: watched.urls == {ONE.url})
            assert await other.delete(ONE.url)
            await watched.until(lambda: not watched.urls)
            await asyncio.sleep(1)
        assert not watched.urls

    async def test_marks_are_told_like_records_and_outlive_them(self, open_store: Open) -> None:
        """Also of a URL that has no record; each is added and taken away by itself."""
        here, there = open_store(), open_store()
        assert here.keeps_cordons
        async with watching(there) as watched:
            await watched.until(lambda: bool(watched.changes))
            await here.write_cordons(
                {ONE.url: said(7, "held", "paused:memory:a/b"), TWO.url: said(7, "held")}
            )
            await watched.until(lambda: watched.marks.keys() == {ONE.url, TWO.url})
            await watched.until(lambda: watched.marks[ONE.url] == {"held", "paused:memory:a/b"})
            await here.put(ONE)
            await here.delete(ONE.url)
            lifted = said(8, "held", there=False)
            await there.write_cordons({ONE.url: {**lifted, **said(8, "never", there=False)}, TWO.url: lifted})
            await watched.until(lambda: watched.marks == {ONE.url: {"paused:memory:a/b"}})
        async with watching(open_store()) as later:
            await later.until(lambda: bool(later.changes))
        assert later.records == {} and later.marks == {ONE.url: {"paused:memory:a/b"}}
        assert later.said[ONE.url]["paused:memory:a/b"] == Versioned(7, "a", True)
        assert later.said[TWO.url] == lifted, "it is remembered, for who writes late"

    @pytest.mark.parametrize("first", [True, False])
    async def test_what_was_said_later_counts_whichever_is_written_first(
        self, open_store: Open, first: bool
    ) -> None:
        """And is told to whoever reads then."""
        stores = [open_store(), open_store()]
        older, newer = said(7, "held", there=first), said(9, "held", there=not first)
        for store, edits in zip(stores, ({ONE.url: newer, TWO.url: older}, {ONE.url: older}), strict=True):
            await store.write_cordons(edits)
        await stores[0].write_cordons({TWO.url: newer})
        async with watching(stores[1]) as watched:
            await watched.until(lambda: bool(watched.changes))
        assert watched.said == {ONE.url: newer, TWO.url: newer}

    async def test_marks_by_several_at_once_are_all_kept(self, open_store: Open) -> None:
        stores = [open_store() for _ in range(3)]
        edits = [{ONE.url: said(7, f"mark-{number}")} for number in range(12)]
        await asyncio.gather(*(stores[number % 3].write_cordons(edit) for number, edit in enumerate(edits)))
        async with watching(stores[0]) as watched:
            await watched.until(lambda: bool(watched.changes))
        assert watched.marks == {ONE.url: {f"mark-{n}" for n in range(12)}}

    async def test_marks_of_a_large_fleet_are_written_in_time(self, open_store: Open) -> None:
        store = open_store()
        urls = [f"http://10.{number // 256}.{number % 256}.1:8000" for number in range(1024)]
        word = "paused:generation:generation"
        await store.write_cordons({url: said(7, word) for url in urls})
        async with watching(store) as watched:
            await watched.until(lambda: watched.marks.keys() == set(urls))
            await store.write_cordons({url: said(8, word, there=False) for url in urls})
            await watched.until(lambda: not watched.marks)


def said(at: int, *words: str, there: bool = True) -> dict[str, Versioned]:
    return {word: Versioned(at, "a", there) for word in words}
