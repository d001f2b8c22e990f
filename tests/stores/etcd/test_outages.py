"""A watch of etcd while servers are killed, hang, lose their data or are cut off."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.loop.tasks import Tasks
from gateway.stores.base import Gone, Put, Reset, StoreUnavailable
from gateway.stores.etcd.client import EtcdAccess
from gateway.stores.etcd.store import WRITE_TIMEOUT, EtcdStore
from tests.stores.contract import ONE, THREE, TWO
from tests.stores.etcd import cluster
from tests.stores.etcd.cluster import Member
from tests.stores.etcd.conftest import PATIENCE
from tests.stores.watching import turns, watching
from tests.support.gateway import until


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    with cluster.running(tmp_path) as member:
        yield member


@asynccontextmanager
async def stores(
    *endpoints: str, write_timeout: float = PATIENCE
) -> AsyncIterator[tuple[EtcdStore, EtcdStore]]:
    """Two stores on one etcd; tests write to the second and watch the first."""
    async with AsyncExitStack() as stack:
        pair = [EtcdStore(EtcdAccess(endpoints), "/test", write_timeout=write_timeout) for _ in range(2)]
        for store in pair:
            stack.push_async_callback(store.close)
        yield pair[0], pair[1]


async def test_watch_continues_where_a_restart_broke_it_off(member: Member) -> None:
    """No change is yielded twice, and none is missed, though some happen before the watch is back.

    A gateway that starts before etcd finds it. A record with a TTL outlives the restart.
    """
    await asyncio.to_thread(member.kill)
    async with stores(member.url) as (store, other), watching(store) as watched:
        await until(lambda: member.url in store.reason)
        assert not watched.changes
        await asyncio.to_thread(restart, member)
        await other.put(ONE)
        await other.put(THREE, ttl=3)
        await watched.until(lambda: watched.urls == {ONE.url, THREE.url})
        await turns(store, healthy=True)
        await asyncio.to_thread(member.kill)
        await turns(store, healthy=False)
        assert member.url in store.reason
        assert watched.urls == {ONE.url, THREE.url}
        await asyncio.to_thread(restart, member)
        await other.put(TWO)
        await other.delete(ONE.url)
        await watched.until(lambda: watched.urls == {TWO.url, THREE.url})
        await turns(store, healthy=True)
        await asyncio.sleep(4)
    assert watched.changes[-2:] == [Put(TWO), Gone(ONE.url)], "the record with a TTL is never gone"
    assert sum(isinstance(change, Reset) for change in watched.changes) == 1


async def test_server_that_hangs_counts_as_an_outage(member: Member) -> None:
    """Its connections stay open; the fleet stays as it is known."""
    async with stores(member.url) as (store, other), watching(store) as watched:
        await other.put(ONE)
        await watched.until(lambda: watched.urls == {ONE.url})
        await turns(store, healthy=True)
        member.pause()
        await turns(store, healthy=False)
        assert watched.urls == {ONE.url}
        member.resume()
        await turns(store, healthy=True)
        await other.put(TWO)
        await watched.until(lambda: watched.urls == {ONE.url, TWO.url})


async def test_write_during_an_outage_fails_at_its_deadline(member: Member) -> None:
    """The message names the server."""
    assert WRITE_TIMEOUT < 1
    async with stores(member.url, write_timeout=WRITE_TIMEOUT) as (store, _):
        for break_ in (member.pause, member.kill):
            break_()
            for write in (store.put(ONE), store.put(ONE, ttl=10), store.delete(ONE.url)):
                with pytest.raises(StoreUnavailable, match=member.url):
                    await write


async def test_compacted_history_leads_to_a_reset(member: Member) -> None:
    async with stores(member.url) as (store, other), watching(store) as watched:
        await other.put(ONE)
        await other.put(TWO)
        await watched.until(lambda: watched.urls == {ONE.url, TWO.url})
        async with proxied(member) as (proxy, url), stores(url) as (behind, _), watching(behind) as late:
            await late.until(lambda: late.urls == {ONE.url, TWO.url})
            await proxy.cut()
            await other.delete(ONE.url)
            await other.put(THREE)
            await asyncio.to_thread(cluster.compact, member.url)
            await proxy.mend()
            await late.until(lambda: late.urls == {TWO.url, THREE.url})
            assert late.changes[-1] == Reset({TWO.url: TWO, THREE.url: THREE})
        await watched.until(lambda: watched.urls == {TWO.url, THREE.url})
        assert watched.changes[-2:] == [Gone(ONE.url), Put(THREE)]


async def test_server_that_lost_its_data_is_noticed(member: Member) -> None:
    """Its revisions begin again at 1: a watch from an old revision would wait for ever."""
    async with stores(member.url) as (store, other), watching(store) as watched:
        for record in (ONE, TWO, replace(TWO, cordoned=True), THREE):
            await other.put(record)
        await watched.until(lambda: watched.urls == {ONE.url, TWO.url, THREE.url})
        await asyncio.to_thread(member.kill)
        member.forget()
        await asyncio.to_thread(restart, member)
        await other.put(THREE)
        await watched.until(lambda: watched.urls == {THREE.url})


async def test_watch_whose_events_get_lost_on_the_way_is_noticed(member: Member) -> None:
    """The connection is open and the server healthy, but nothing arrives on that connection."""
    async with (
        proxied(member) as (proxy, url),
        stores(url) as (store, _),
        stores(member.url) as (other, _),
        watching(store) as watched,
    ):
        await other.put(ONE)
        await watched.until(lambda: watched.urls == {ONE.url})
        proxy.swallow()
        await other.put(TWO)
        await watched.until(lambda: watched.urls == {ONE.url, TWO.url})
        proxy.swallow()
        await other.delete(ONE.url)
        await watched.until(lambda: watched.urls == {TWO.url})


async def test_record_whose_lease_was_revoked_is_registered_again(member: Member) -> None:
    """As it was put last."""
    async with stores(member.url) as (store, renewer), watching(store) as watched:
        await renewer.put(ONE, ttl=1)
        changed = replace(ONE, cordoned=False)
        await renewer.put(changed)
        await watched.until(lambda: watched.records == {ONE.url: changed})
        leases = await asyncio.to_thread(cluster.call, member.url, "/v3/lease/leases", {})
        for lease in leases["leases"]:
            await asyncio.to_thread(cluster.call, member.url, "/v3/lease/revoke", lease)
        await watched.until(lambda: not watched.urls)
        await watched.until(lambda: watched.records == {ONE.url: changed})


async def test_value_that_is_not_a_record_is_ignored(member: Member) -> None:
    """A record that becomes invalid is gone until it is mended."""
    strange = {"key": _base64("/test/workers/http://x:1"), "value": _base64("{not json")}
    broken = {"key": _base64(f"/test/workers/{ONE.url}"), "value": _base64(TWO.to_json())}
    async with stores(member.url) as (store, other):
        await asyncio.to_thread(cluster.call, member.url, "/v3/kv/put", strange)
        await asyncio.to_thread(cluster.call, member.url, "/v3/kv/put", {"key": _base64("/test/workers/")})
        async with watching(store) as watched:
            await other.put(ONE)
            await other.put(TWO)
            await watched.until(lambda: watched.urls == {ONE.url, TWO.url})
            await asyncio.to_thread(cluster.call, member.url, "/v3/kv/put", broken)
            await watched.until(lambda: watched.urls == {TWO.url})
            await other.put(ONE)
            await watched.until(lambda: watched.urls == {ONE.url, TWO.url})


async def test_store_fails_over_between_members_of_a_cluster(tmp_path: Path) -> None:
    """One is killed, then one hangs; without a majority the fleet stays as it is known."""
    with cluster.cluster(tmp_path, "one", "two", "three") as members:
        urls = [member.url for member in members]
        async with stores(*urls) as (store, other), watching(store) as watched:
            await other.put(ONE)
            await watched.until(lambda: watched.urls == {ONE.url})
            await asyncio.to_thread(members[0].kill)
            await other.put(TWO)
            await watched.until(lambda: watched.urls == {ONE.url, TWO.url})
            members[0].start(",".join(member.peer for member in members))
            await asyncio.to_thread(members[0].wait)
            members[1].pause()
            await other.delete(ONE.url)
            await watched.until(lambda: watched.urls == {TWO.url})
            await turns(store, healthy=True)
            await asyncio.to_thread(members[0].kill)
            await turns(store, healthy=False)
            assert watched.urls == {TWO.url}
            members[1].resume()
            await turns(store, healthy=True)
            await other.put(THREE)
            await watched.until(lambda: watched.urls == {TWO.url, THREE.url})


def restart(member: Member) -> None:
    member.start()
    member.wait()


class LossyProxy:
    """A TCP proxy in front of a server, which can be cut or can drop bytes."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._tasks = Tasks()
        self._open: set[asyncio.StreamWriter] = set()
        self._dropping: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def swallow(self) -> None:
        """Drop all bytes to the client on the connections that are open now."""
        self._dropping |= self._open

    async def cut(self) -> None:
        """Close all connections, and accept no more."""
        assert self._server is not None
        self._server.close()
        await self._tasks.stop()

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.spawn(self._carry(reader, writer), "connection")

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._member.client_port)
        self._open.add(writer)
        there = self._tasks.spawn(self._copy(reader, far_writer), "there")
        try:
            await self._copy(far_reader, writer)
        finally:
            there.cancel()
            self._open.discard(writer)
            for each in (writer, far_writer):
                each.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if writer not in self._dropping:
                writer.write(data)


@asynccontextmanager
async def proxied(member: Member) -> AsyncIterator[tuple[LossyProxy, str]]:
    proxy = LossyProxy(member)
    await proxy.mend()
    try:
        yield proxy, proxy.url
    finally:
        await proxy.cut()


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()
