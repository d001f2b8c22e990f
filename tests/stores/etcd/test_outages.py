"""A watch of etcd while servers are killed, hang, lose their data or are cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from gateway.loop.tasks import Tasks
from gateway.stores.base import Gone, Put, Reset, StoreUnavailable
from gateway.stores.etcd.store import WRITE_TIMEOUT
from tests.stores.contract import ONE, THREE, TWO
from tests.stores.etcd import cluster
from tests.stores.etcd.cluster import RANGE, Member
from tests.stores.etcd.conftest import Opened
from tests.stores.watching import turns, watching
from tests.support.gateway import until


async def test_watch_continues_where_a_restart_broke_it_off(member: Member, opened: Opened) -> None:
    """No change is yielded twice, and none is missed, though some happen before the watch is back.

    A gateway that starts before etcd finds it. A record with a TTL outlives the restart.
    """
    await asyncio.to_thread(member.kill)
    store, other = opened(member.url), opened(member.url)
    async with watching(store) as watched:
        await until(lambda: member.url in store.reason)
        assert not watched.changes
        await asyncio.to_thread(member.restart)
        await other.put(ONE)
        await other.put(THREE, ttl=3)
        await watched.knows(ONE.url, THREE.url)
        await turns(store, healthy=True)
        await asyncio.to_thread(member.kill)
        await turns(store, healthy=False)
        assert member.url in store.reason
        assert watched.urls == {ONE.url, THREE.url}
        await asyncio.to_thread(member.restart)
        await other.put(TWO)
        await other.delete(ONE.url)
        await watched.knows(TWO.url, THREE.url)
        await turns(store, healthy=True)
        await asyncio.sleep(4)
    assert watched.changes[-2:] == [Put(TWO), Gone(ONE.url)], "the record with a TTL is never gone"
    assert watched.resets == 1


async def test_write_during_an_outage_fails_at_its_deadline(member: Member, opened: Opened) -> None:
    """The message names the server."""
    assert WRITE_TIMEOUT < 1
    store = opened(member.url, write_timeout=WRITE_TIMEOUT)
    for signal in (SIGSTOP, SIGKILL):
        member.send(signal)
        for write in (store.put(ONE), store.put(ONE, ttl=10), store.delete(ONE.url)):
            with pytest.raises(StoreUnavailable, match=member.url):
                await write


async def test_compacted_history_leads_to_a_reset(member: Member, opened: Opened) -> None:
    store, other = opened(member.url), opened(member.url)
    async with watching(store) as watched:
        await other.put(ONE)
        await other.put(TWO)
        await watched.knows(ONE.url, TWO.url)
        async with proxied(member) as proxy, watching(opened(proxy.url)) as late:
            await late.knows(ONE.url, TWO.url)
            await proxy.cut()
            await other.delete(ONE.url)
            await other.put(THREE)
            revision = member.call("kv/range", **RANGE)["header"]["revision"]
            member.call("kv/compaction", revision=revision)
            await proxy.mend()
            await late.knows(TWO.url, THREE.url)
            assert late.changes[-1] == Reset({TWO.url: TWO, THREE.url: THREE})
        await watched.knows(TWO.url, THREE.url)
        assert watched.changes[-2:] == [Gone(ONE.url), Put(THREE)]


async def test_server_that_lost_its_data_is_noticed(member: Member, opened: Opened) -> None:
    """Its revisions begin again at 1: a watch from an old revision would wait for ever."""
    store, other = opened(member.url), opened(member.url)
    async with watching(store) as watched:
        for record in (ONE, TWO, replace(TWO, cordoned=True), THREE):
            await other.put(record)
        await watched.knows(ONE.url, TWO.url, THREE.url)
        await asyncio.to_thread(member.kill)
        rmtree(member.folder / member.name)
        await asyncio.to_thread(member.restart)
        await other.put(THREE)
        await watched.knows(THREE.url)


async def test_watch_whose_events_get_lost_on_the_way_is_noticed(member: Member, opened: Opened) -> None:
    """The connection is open and the server healthy, but nothing arrives on that connection."""
    other = opened(member.url)
    async with proxied(member) as proxy, watching(opened(proxy.url)) as watched:
        await other.put(ONE)
        await watched.knows(ONE.url)
        proxy.swallow()
        await other.put(TWO)
        await watched.knows(ONE.url, TWO.url)
        proxy.swallow()
        await other.delete(ONE.url)
        await watched.knows(TWO.url)


async def test_record_whose_lease_was_revoked_is_registered_again(member: Member, opened: Opened) -> None:
    """As it was put last."""
    store, renewer = opened(member.url), opened(member.url)
    changed = {ONE.url: replace(ONE, cordoned=False)}
    async with watching(store) as watched:
        await renewer.put(ONE, ttl=1)
        await renewer.put(changed[ONE.url])
        await watched.until(lambda: watched.records == changed)
        for lease in member.call("lease/leases")["leases"]:
            member.call("lease/revoke", **lease)
        await watched.knows()
        await watched.until(lambda: watched.records == changed)


async def test_store_fails_over_between_members_of_a_cluster(tmp_path: Path, opened: Opened) -> None:
    """One is killed, then one hangs; without a majority the fleet stays as it is known."""
    with cluster.cluster(tmp_path, "one", "two", "three") as members:
        urls = [member.url for member in members]
        store, other = opened(*urls), opened(*urls)
        async with watching(store) as watched:
            await other.put(ONE)
            await watched.knows(ONE.url)
            await asyncio.to_thread(members[0].kill)
            await other.put(TWO)
            await watched.knows(ONE.url, TWO.url)
            await asyncio.to_thread(members[0].restart, ",".join(member.peer for member in members))
            members[1].send(SIGSTOP)
            await other.delete(ONE.url)
            await watched.knows(TWO.url)
            await turns(store, healthy=True)
            await asyncio.to_thread(members[0].kill)
            await turns(store, healthy=False)
            assert watched.urls == {TWO.url}
            members[1].send(SIGCONT)
            await turns(store, healthy=True)
            await other.put(THREE)
            await watched.knows(TWO.url, THREE.url)


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
        self._server = await asyncio.start_server(
            lambda *streams: self._tasks.spawn(self._carry(*streams), "connection"), "127.0.0.1", self._port
        )
        self._port = self._server.sockets[0].getsockname()[1]

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
async def proxied(member: Member) -> AsyncIterator[LossyProxy]:
    proxy = LossyProxy(member)
    await proxy.mend()
    try:
        yield proxy
    finally:
        await proxy.cut()
