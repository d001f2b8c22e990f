"""The store in a file that people edit, and that can be broken."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from gateway.stores.base import Gone, Put, Reset, StoreUnavailable
from gateway.stores.file.shared_file import SharedFile
from gateway.stores.file.store import HANG_MARGIN, POLL_INTERVAL, WRITE_TIMEOUT, FileStore
from gateway.stores.record import WorkerRecord
from tests.stores.contract import ONE, THREE, TWO, Open, SharedStoreContract
from tests.stores.watching import turns, watching
from tests.support.gateway import until


class TestContract(SharedStoreContract):
    """The contract of all stores."""


def write(path: Path, *urls: str) -> None:
    edit(path, json.dumps({"workers": list(urls)}))


def edit(path: Path, text: str) -> None:
    path.write_text(text)


def text_of(path: Path) -> str:
    return path.read_text()


async def test_edit_by_hand_is_noticed_at_the_next_poll(path: Path, open_store: Open) -> None:
    """In place or by replacing the file; only what has changed is yielded."""
    assert POLL_INTERVAL <= 0.5
    write(path, "http://a:1")
    async with watching(open_store()) as watched:
        await watched.until(lambda: watched.urls == {"http://a:1"})
        write(path, "http://b:1")
        os.utime(path, ns=(1, 1))  # as two edits within one tick of the file system's clock
        await watched.until(lambda: watched.urls == {"http://b:1"})
        write(path, "http://d:1")
        os.utime(path, ns=(1, 1))
        await watched.until(lambda: watched.urls == {"http://d:1"})
        new = path.with_name("new")
        write(new, "http://b:1", "http://c:1")
        new.replace(path)
        await watched.until(lambda: watched.urls == {"http://b:1", "http://c:1"})
    records = [WorkerRecord(f"http://{name}:1") for name in "bdbc"]
    b, d, again, c = map(Put, records)
    gone = [Gone(f"http://{name}:1") for name in "abd"]
    assert watched.changes[1:] == [gone[0], b, gone[1], d, gone[2], again, c]


@pytest.mark.parametrize(
    "text", ['{"workers": [', "", '{"workers": ["http://a:1", {"url": "ftp://b"}]}', "[]"]
)
async def test_broken_file_leaves_the_fleet_as_it_is_known(text: str, path: Path, open_store: Open) -> None:
    """The store is unhealthy, and does not write to the file until it is mended."""
    store, keeper = open_store(), open_store()
    await keeper.put(ONE, ttl=2)
    async with watching(store) as watched:
        await watched.until(lambda: watched.urls == {ONE.url})
        await turns(store, healthy=True)
        edit(path, text)
        await turns(store, healthy=False)
        assert store.reason
        assert watched.changes == [Reset({ONE.url: ONE})]
        for writer in (store, keeper):
            with pytest.raises(StoreUnavailable, match="was not changed"):
                await writer.put(TWO)
        assert text_of(path) == text
        write(path, THREE.url)
        await watched.until(lambda: watched.urls == {THREE.url})
        await turns(store, healthy=True)


async def test_file_that_goes_missing_leaves_the_fleet_as_it_is_known(path: Path, open_store: Open) -> None:
    store = open_store()
    await store.put(ONE)
    async with watching(store) as watched:
        await watched.until(lambda: watched.urls == {ONE.url})
        os.unlink(path)
        await turns(store, healthy=False)
        assert (watched.urls, store.reason) == ({ONE.url}, "it is missing")
        with pytest.raises(StoreUnavailable, match="it is missing"):
            await store.put(TWO)
        write(path, TWO.url)
        await watched.until(lambda: watched.urls == {TWO.url})


async def test_file_that_is_broken_at_the_start_is_read_once_it_is_mended(
    path: Path, open_store: Open
) -> None:
    """A file that was always empty can be written."""
    edit(path, "workers: []")
    store = open_store()
    async with watching(store) as watched:
        await until(lambda: "not JSON" in store.reason)
        assert not watched.changes
        edit(path, "")
        await watched.until(lambda: watched.changes == [Reset({})])
        await store.put(TWO)
        await watched.until(lambda: watched.urls == {TWO.url})


async def test_records_do_not_expire_while_the_file_is_broken(path: Path, open_store: Open) -> None:
    """Nobody can renew a record meanwhile, so there is time for it when the file is mended."""
    store, keeper = open_store(), open_store()
    await keeper.put(ONE, ttl=1)
    async with watching(store) as watched:
        await watched.until(lambda: watched.urls == {ONE.url})
        good = text_of(path)
        edit(path, "{")
        await asyncio.sleep(2)
        assert watched.urls == {ONE.url}
        edit(path, good)
        await turns(store, healthy=True)
        await asyncio.sleep(4)
    assert watched.changes == [Reset({ONE.url: ONE})]


async def test_unknown_members_of_the_file_and_of_workers_are_kept(path: Path, open_store: Open) -> None:
    text = {"note": "of rack b4", "workers": [{"url": TWO.url, "colour": "red"}, THREE.url]}
    edit(path, json.dumps(text))
    await open_store().put(ONE)
    written = json.loads(text_of(path))
    assert written["note"] == text["note"]
    assert written["workers"][:2] == [{"url": TWO.url, "colour": "red"}, {"url": THREE.url}]


async def test_write_that_changes_nothing_does_not_touch_the_file(path: Path, open_store: Open) -> None:
    edit(path, f'{{"workers":\n\n["{TWO.url}" ]}}')
    before = SharedFile(path).version()
    store = open_store()
    await store.put(TWO)
    await store.delete(ONE.url)
    assert SharedFile(path).version() == before


async def test_write_that_gets_no_lock_in_time_fails(path: Path) -> None:
    assert WRITE_TIMEOUT + HANG_MARGIN < 1
    store = FileStore(path, write_timeout=0.05)
    with SharedFile(path).locked(0):
        with pytest.raises(StoreUnavailable, match="other processes are writing it|in time"):
            await store.put(ONE)
    await store.close()
    store = FileStore(path)
    await store.put(ONE)
    await store.close()


async def test_write_to_a_path_that_is_no_file_fails(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "folder" / "workers.json", tmp_path):
        store = FileStore(path)
        with pytest.raises(StoreUnavailable, match="was not changed"):
            await store.put(ONE)
        await store.close()
