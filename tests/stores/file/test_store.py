"""Records in a file that people edit as well, and that breaks."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from gateway.stores.base import Gone, Put, Reset, StoreUnavailable
from gateway.stores.file.shared_file import SharedFile
from gateway.stores.file.store import FileStore
from gateway.stores.record import WorkerRecord
from tests.stores.contract import ONE, THREE, TWO, Open, SharedStoreContract
from tests.stores.watching import eventually, turns, watching


class TestContract(SharedStoreContract):
    """What every store promises."""


def write(path: Path, *urls: str) -> None:
    edit(path, json.dumps({"workers": list(urls)}))


def edit(path: Path, text: str) -> None:
    path.write_text(text)


def text_of(path: Path) -> str:
    return path.read_text()


def state_of(path: Path) -> os.stat_result:
    return path.stat()


async def test_edit_by_hand_is_noticed_within_a_second(path: Path, open_store: Open) -> None:
    """In place as well as by a new file that takes the old one's place; and by what changed only."""
    write(path, "http://a:1")
    async with watching(open_store()) as watched:
        await watched.until(lambda: watched.urls == {"http://a:1"})
        write(path, "http://b:1")
        await watched.until(lambda: watched.urls == {"http://b:1"}, 1)
        new = path.with_name("new")
        write(new, "http://b:1", "http://c:1")
        new.replace(path)
        await watched.until(lambda: watched.urls == {"http://b:1", "http://c:1"}, 1)
    b, c = WorkerRecord("http://b:1"), WorkerRecord("http://c:1")
    assert watched.changes[1:] == [Gone("http://a:1"), Put(b), Put(c)]


async def test_edit_that_leaves_time_and_size_alike_is_noticed(path: Path, open_store: Open) -> None:
    """As two within one tick of the file system's clock do."""
    write(path, "http://a:1")
    async with watching(open_store()) as watched:
        await watched.until(lambda: watched.urls == {"http://a:1"})
        write(path, "http://b:1")
        version = state_of(path)
        await watched.until(lambda: watched.urls == {"http://b:1"}, 1)
        write(path, "http://c:1")
        os.utime(path, ns=(version.st_atime_ns, version.st_mtime_ns))
        await watched.until(lambda: watched.urls == {"http://c:1"}, 1)


@pytest.mark.parametrize(
    "text", ['{"workers": [', "", '{"workers": ["http://a:1", {"url": "ftp://b"}]}', "[]"]
)
async def test_broken_file_leaves_the_fleet_as_it_is_known(text: str, path: Path, open_store: Open) -> None:
    """Says so, and is not written to until it is mended."""
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


async def test_file_that_was_empty_all_along_can_be_written(path: Path, open_store: Open) -> None:
    edit(path, "")
    store = open_store()
    async with watching(store) as watched:
        await watched.until(lambda: watched.changes == [Reset({})])
        await store.put(ONE)
        await watched.until(lambda: watched.urls == {ONE.url})


async def test_file_broken_from_the_start_is_told_and_waited_for(path: Path, open_store: Open) -> None:
    edit(path, "workers: []")
    store = open_store()
    async with watching(store) as watched:
        await eventually(lambda: "not JSON" in store.reason)
        assert not watched.changes
        write(path, TWO.url)
        await watched.until(lambda: watched.urls == {TWO.url})


async def test_leases_do_not_run_out_with_a_file_that_is_broken(path: Path, open_store: Open) -> None:
    """No keeper can renew one meanwhile, and none is blamed for it when the file is mended."""
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


async def test_what_others_wrote_into_the_file_stays(path: Path, open_store: Open) -> None:
    """Members of a newer version, of the file and of the workers that are not written to."""
    text = {"note": "of rack b4", "workers": [{"url": TWO.url, "colour": "red"}, THREE.url]}
    edit(path, json.dumps(text))
    await open_store().put(ONE)
    written = json.loads(text_of(path))
    assert written["note"] == text["note"]
    assert written["workers"][:2] == [{"url": TWO.url, "colour": "red"}, {"url": THREE.url}]


async def test_write_that_changes_nothing_leaves_the_file_alone(path: Path, open_store: Open) -> None:
    """Its spaces and all."""
    edit(path, f'{{"workers":\n\n["{TWO.url}" ]}}')
    before = SharedFile(path).version()
    store = open_store()
    await store.put(TWO)
    await store.delete(ONE.url)
    assert SharedFile(path).version() == before


async def test_write_that_gets_no_lock_fails_within_a_second(path: Path) -> None:
    store = FileStore(path)
    loop = asyncio.get_running_loop()
    with SharedFile(path).locked(0):
        started = loop.time()
        with pytest.raises(StoreUnavailable, match="other processes are writing it"):
            await store.put(ONE)
        assert 0.5 < loop.time() - started < 1
    await store.put(ONE)
    await store.close()


async def test_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "folder" / "workers.json", tmp_path):
        store = FileStore(path)
        with pytest.raises(StoreUnavailable, match="was not changed"):
            await store.put(ONE)
        await store.close()
