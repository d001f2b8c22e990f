"""The store in a file that people edit, and that can be broken."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.settings import load_settings
from gateway.stores.base import Gone, Put, Reset, StoreUnavailable
from gateway.stores.file.shared_file import SharedFile
from gateway.stores.file.store import HANG_MARGIN, POLL_INTERVAL, WRITE_TIMEOUT, FileStore
from gateway.stores.record import WorkerRecord
from gateway.wiring.file_store import file_store
from gateway.wiring.stores import STORES
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


async def test_file_of_the_settings_is_used_and_required(path: Path) -> None:
    store = STORES["file"](load_settings({"discovery_backend": "file", "discovery_file": str(path)}))
    await store.put(ONE)
    assert ONE.url in text_of(path)
    await store.close()
    with pytest.raises(ValueError, match="no file"):
        file_store(load_settings())


async def test_edit_by_hand_is_noticed_at_the_next_poll(path: Path, open_store: Open) -> None:
    """In place or by replacing the file; only what has changed is yielded."""
    assert POLL_INTERVAL <= 0.5
    write(path, "http://a:1")
    async with watching(open_store()) as watched:
        await watched.knows("http://a:1")
        for url in ("http://b:1", "http://d:1"):
            write(path, url)
            os.utime(path, ns=(1, 1))  # as two edits within one tick of the file system's clock
            await watched.knows(url)
        new = path.with_name("new")
        write(new, "http://b:1", "http://c:1")
        new.replace(path)
        await watched.knows("http://b:1", "http://c:1")
    b, d, again, c = (Put(WorkerRecord(f"http://{name}:1")) for name in "bdbc")
    gone = [Gone(f"http://{name}:1") for name in "abd"]
    assert watched.changes[1:] == [gone[0], b, gone[1], d, gone[2], again, c]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_text('{"workers": ['), "not JSON"),
        (lambda path: path.write_text(""), "it is empty"),
        (lambda path: path.write_text('{"workers": ["http://a:1", {"url": "ftp://b"}]}'), "worker 2"),
        (lambda path: path.write_text("[]"), "must be a JSON object"),
        (lambda path: path.unlink(), "it is missing"),
    ],
)
async def test_broken_file_leaves_the_fleet_as_it_is_known(
    damage: Callable[[Path], object], reason: str, path: Path, open_store: Open
) -> None:
    """The store is unhealthy, and does not write to the file until it is mended."""
    store, keeper = open_store(), open_store()
    await keeper.put(ONE, ttl=2)
    async with watching(store) as watched:
        await watched.knows(ONE.url)
        await turns(store, healthy=True)
        damage(path)
        broken = text_of(path) if path.exists() else None  # noqa: ASYNC240
        await turns(store, healthy=False)
        assert reason in store.reason
        assert watched.changes == [Reset({ONE.url: ONE})]
        for writer in (store, keeper):
            with pytest.raises(StoreUnavailable, match=f"was not changed: .*{reason}"):
                await writer.put(TWO)
        assert broken == (text_of(path) if path.exists() else None)  # noqa: ASYNC240
        write(path, THREE.url)
        await watched.knows(THREE.url)
        await turns(store, healthy=True)


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
        await watched.knows(TWO.url)


async def test_records_do_not_expire_while_the_file_is_broken(path: Path, open_store: Open) -> None:
    """Nobody can renew a record meanwhile, so there is time for it when the file is mended."""
    store, keeper = open_store(), open_store()
    await keeper.put(ONE, ttl=1)
    async with watching(store) as watched:
        await watched.knows(ONE.url)
        good = text_of(path)
        edit(path, "{")
        # It has expired when the file is mended, and is renewed half a second later.
        await asyncio.sleep(1.6)
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
    before, store = SharedFile(path).version(), open_store()
    await store.put(TWO)
    await store.delete(ONE.url)
    assert SharedFile(path).version() == before


async def test_write_that_gets_no_lock_in_time_or_has_no_file_fails(path: Path) -> None:
    assert WRITE_TIMEOUT + HANG_MARGIN < 1
    store = FileStore(path, write_timeout=0.05)
    with SharedFile(path).locked(0):
        with pytest.raises(StoreUnavailable, match="other processes are writing it|in time"):
            await store.put(ONE)
    await store.close()
    for place in (path.parent / "no" / "folder" / "workers.json", path.parent):
        store = FileStore(place)
        with pytest.raises(StoreUnavailable, match="was not changed"):
            await store.put(ONE)
        await store.close()
