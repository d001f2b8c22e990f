"""What a watch of etcd survives: every way in which servers end, hang, forget and are cut off."""

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
from gateway.stores.etcd.store import EtcdStore
from gateway.stores.record import WorkerRecord
from tests.stores.contract import ONE, THREE, TWO
from tests.stores.etcd import cluster
from tests.stores.etcd.cluster import Member
from tests.stores.etcd.conftest import PATIENCE
from tests.stores.watching import eventually, turns, watching


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    with cluster.running(tmp_path) as member:
        yield member


@asynccontextmanager
async def stores(
    *endpoints: str, write_timeout: float = PATIENCE
) -> AsyncIterator[tuple[EtcdStore, EtcdStore]]:
    """Two replicas; the second one writes what the first is told."""
    async with AsyncExitStack() as stack:
        pair = [EtcdStore(EtcdAccess(endpoints), "/test", write_timeout=write_timeout) for _ in range(2)]
        for store in pair:
            stack.push_async_callback(store.close)
        yield pair[0], pair[1]


async def test_watch_goes_on_where_a_restart_broke_it_off(member: Member) -> None:
    """Nothing is told twice, nothing is missed, though it was written before the watch was back."""
    async with stores(member.url) as (store, other), watching(store) as watched:
        await other.put(ONE)
        await watched.until(lambda: watched.urls == {ONE.url})
        await turns(store, healthy=True)
        await asyncio.to_thread(member.kill)
        await turns(store, healthy=False)
        assert member.url in store.reason
        assert watched.urls == {ONE.url}
        await asyncio.to_thread(restart, member)
        await other.put(TWO)
        await other.delete(ONE.url)
        await watched.until(lambda: watched.urls == {TWO.url})
        await turns(store, healthy=True)
    assert watched.changes[-2:] == [Put(TWO), Gone(ONE.url)]
    assert sum(isinstance(change, Reset) for change in watched.changes) == 1


async def test_gateway_that_starts_before_etcd_finds_it(member: Member) -> None:
    await asyncio.to_thread(member.kill)
    async with stores(member.url) as (store, other), watching(store) as watched:
        await eventually(lambda: member.url in store.reason)
        assert not watched.changes
        await asyncio.to_thread(restart, member)
        await other.put(ONE)
        await watched.until(lambda: watched.urls == {ONE.url})


async def test_server_that_hangs_counts_as_an_outage(member: Member) -> None:
    """Its connections stay open and its kernel answers; the fleet stays as it is known."""
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


async def test_write_during_an_outage_fails_within_a_second(member: Member) -> None:
    """Whether the server hangs or is gone; the message says which one it was."""
    async with stores(member.url, write_timeout=0.9) as (store, _):
        loop = asyncio.get_running_loop()
        for break_ in (member.pause, member.kill):
            break_()
            for write in (store.put(ONE), store.put(ONE, ttl=10), store.delete(ONE.url)):
                started = loop.time()
                with pytest.raises(StoreUnavailable, match=member.url):
                    await write
                assert loop.time() - started < 1


async def test_compacted_history_is_made_up_for_by_a_reset(member: Member) -> None:
    async with stores(member.url) as (store, other), watching(store) as watched:
        await other.put(ONE)
        await other.put(TWO)
        await watched.until(lambda: watched.urls == {ONE.url, TWO.url})
        proxied = watched.changes[:]
        async with muffled(member) as (muffle, url), stores(url) as (behind, _), watching(behind) as late:
            await late.until(lambda: late.urls == {ONE.url, TWO.url})
            await muffle.cut()
            await other.delete(ONE.url)
            await other.put(THREE)
            await asyncio.to_thread(cluster.compact, member.url)
            await muffle.mend()
            await late.until(lambda: late.urls == {TWO.url, THREE.url})
            assert late.changes[-1] == Reset({TWO.url: TWO, THREE.url: THREE})
        await watched.until(lambda: watched.urls == {TWO.url, THREE.url})
        assert watched.changes == [*proxied, Gone(ONE.url), Put(THREE)]


async def test_server_that_lost_its_data_is_noticed(member: Member) -> None:
    """Its revisions begin anew: a watch from the old ones would wait for ever and say nothing."""
    async with stores(member.url) as (store, other), watching(store) as watched:
        for record in (ONE, TWO, replace(TWO, held=True), THREE):
            await other.put(record)
        await watched.until(lambda: watched.urls == {ONE.url, TWO.url, THREE.url})
        await asyncio.to_thread(member.kill)
        member.forget()
        await asyncio.to_thread(restart, member)
        await other.put(THREE)
        await watched.until(lambda: watched.urls == {THREE.url})


async def test_watch_whose_events_get_lost_on_the_way_is_noticed(member: Member) -> None:
    """The connection stands and the server is well, but what it sends on that connection does not arrive."""
    async with (
        muffled(member) as (muffle, url),
        stores(url) as (store, _),
        stores(member.url) as (other, _),
        watching(store) as watched,
    ):
        await other.put(ONE)
        await watched.until(lambda: watched.urls == {ONE.url})
        muffle.swallow()
        await other.put(TWO)
        await watched.until(lambda: watched.urls == {ONE.url, TWO.url})
        muffle.swallow()
        await other.delete(ONE.url)
        await watched.until(lambda: watched.urls == {TWO.url})


async def test_lost_lease_is_registered_again(member: Member) -> None:
    """With the record as it was put last, and without a word from its keeper."""
    async with stores(member.url) as (store, keeper), watching(store) as watched:
        await keeper.put(ONE, ttl=1)
        changed = replace(ONE, held=False)
        await keeper.put(changed)
        await watched.until(lambda: watched.records == {ONE.url: changed})
        leases = await asyncio.to_thread(cluster.call, member.url, "/v3/lease/leases", {})
        for lease in leases["leases"]:
            await asyncio.to_thread(cluster.call, member.url, "/v3/lease/revoke", lease)
        await watched.until(lambda: not watched.urls)
        await watched.until(lambda: watched.records == {ONE.url: changed})


async def test_leases_outlive_a_restart(member: Member) -> None:
    """Of one that kept its data: the record is never away, and its keeper goes on renewing."""
    async with stores(member.url) as (store, keeper), watching(store) as watched:
        await keeper.put(ONE, ttl=3)
        await watched.until(lambda: watched.urls == {ONE.url})
        await turns(store, healthy=True)
        await asyncio.to_thread(member.kill)
        await turns(store, healthy=False)
        await asyncio.to_thread(restart, member)
        await turns(store, healthy=True)
        await asyncio.sleep(4)
        assert watched.urls == {ONE.url}
        assert Gone(ONE.url) not in watched.changes


async def test_what_is_no_record_is_passed_over(member: Member) -> None:
    """A stranger's key hides no worker; a record that was broken is gone until it is mended."""
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


async def test_deployments_do_not_see_each_other(member: Member) -> None:
    async with (
        stores(member.url) as (store, _),
        AsyncExitStack() as stack,
        watching(store) as watched,
    ):
        neighbour = EtcdStore(EtcdAccess([member.url]), "/test-b", write_timeout=PATIENCE)
        stack.push_async_callback(neighbour.close)
        await neighbour.put(TWO)
        await store.put(ONE)
        await watched.until(lambda: watched.urls == {ONE.url})
        assert watched.changes == [Reset({}), Put(ONE)]


async def test_members_of_a_cluster_stand_in_for_each_other(tmp_path: Path) -> None:
    """One is killed, then one hangs; without a majority the fleet stays as it is known."""
    with cluster.cluster(tmp_path) as members:
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


async def test_512_records_arrive_at_once(member: Member) -> None:
    records = [WorkerRecord(f"http://10.2.{n // 256}.{n % 256}:30000", model="m" * 100) for n in range(512)]
    async with stores(member.url) as (store, other):
        for start in range(0, 512, 16):
            await asyncio.gather(*(other.put(record) for record in records[start : start + 16]))
        async with watching(store) as watched:
            await watched.until(lambda: bool(watched.changes))
    assert watched.changes == [Reset({record.url: record for record in records})]


def restart(member: Member) -> None:
    member.start()
    member.wait()


class Muffle:
    """A network between us and a server, on a port of its own."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._tasks = Tasks()
        self._open: set[asyncio.StreamWriter] = set()
        self._muffled: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def swallow(self) -> None:
        """From now on nothing arrives over the connections that are open."""
        self._muffled |= self._open

    async def cut(self) -> None:
        """Break all connections and take no more."""
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
            if writer not in self._muffled:
                writer.write(data)


@asynccontextmanager
async def muffled(member: Member) -> AsyncIterator[tuple[Muffle, str]]:
    muffle = Muffle(member)
    await muffle.mend()
    try:
        yield muffle, muffle.url
    finally:
        await muffle.cut()


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()
