"""Aborts reach the worker that has the exchange, and nothing waits for a worker that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from gateway.fleet.quotas import ABORTS_AT_WORKER
from gateway.fleet.registry import Fleet
from gateway.fleet.worker import Worker
from gateway.formats.contract import Ids, UpstreamRequest
from gateway.formats.optional import AbortTarget, EngineId
from gateway.formats.worker_contract import WorkerInfo
from gateway.proxy.aborts import ABORT_TIMEOUT, LINGER, PER_EXCHANGE, Aborter, WorkerResult
from gateway.proxy.in_flight import InFlight, InFlightEntry
from gateway.routing.policy import LeastInFlight
from gateway.upstream.address import Address
from gateway.upstream.connector import Connector
from tests.support.gateway import until
from tests.upstream.peer import BODY, REQUEST, Listener, Peer, body, listening

pytestmark = pytest.mark.virtual_time

EVERYTHING = AbortTarget(everything=True)
ACCEPTED = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class StubFormat:
    """A dialect whose abort names the dispatch ids; ``silent`` is one without an abort."""

    name = "stub"

    def __init__(self, *, silent: bool = False, capability: str = "stub-generate") -> None:
        self.silent = silent
        self.capability = capability

    def abort(self, worker: Any, request: object, ids: Ids) -> Sequence[UpstreamRequest]:
        return [] if self.silent else [self.call(worker, each) for each in ids.dispatch]

    def call(self, worker: Any, name: str) -> UpstreamRequest:
        lines = ((b"authorization", worker.authorization or b"none"),)
        return UpstreamRequest(b"POST", worker.prefix + b"/abort", lines, name.encode())


STUB: Any = StubFormat()
SILENT: Any = StubFormat(silent=True)


@dataclass(eq=False)
class Entry:
    """An exchange in flight, which notes in ``closed`` that it was ended without the engine's help."""

    format: Any
    ids: Ids
    worker: Worker | None
    closed: list[str]
    path = ""
    address: str | None = None
    request: object = field(default_factory=object)
    aborted_before_dispatch: frozenset[str | int] = frozenset()

    @property
    def aborted_entirely(self) -> bool:
        return self.aborted_before_dispatch.issuperset(self.ids.public)

    def abort_locally(self) -> None:
        self.closed.append(self.ids.public[0])


class Rig:
    """Exchanges in flight on workers that a test plays."""

    def __init__(self, listeners: Sequence[Listener], timeout: float) -> None:
        self.in_flight: InFlight[InFlightEntry] = InFlight()
        self.aborter = Aborter(self.in_flight, timeout=timeout, linger=2.0)
        self.fleet = Fleet(LeastInFlight(Random(0)), Connector(5.0))
        self.listeners = listeners
        self.workers = [
            Worker(Address.parse(f"http://127.0.0.1:{each.port}/p"), authorization=b"Bearer k")
            for each in listeners
        ]
        for worker in self.workers:
            self.fleet.add(worker)
        self.closed: list[str] = []

    def run(self, *public: str, on: int | None, format: Any = STUB) -> Entry:
        """An exchange in flight; ``on`` is its worker's number, None: it has none yet."""
        ids = self.in_flight.claim(public)
        worker = None if on is None else self.workers[on]
        entry = Entry(format, ids, worker, self.closed)
        self.in_flight.enter(ids, entry)
        return entry

    def finish(self, entry: Entry) -> None:
        self.in_flight.leave(entry.ids, entry)

    def leave(self, *public: str, on: int = 0, format: Any = STUB) -> None:
        self.finish(entry := self.run(*public, on=on, format=format))
        self.aborter.abort_abandoned(entry, self.workers[on])

    async def next_abort(self, number: int, reply: bytes = ACCEPTED) -> str:
        return await answered(await self.listeners[number].accept(), reply)


async def answered(peer: Peer, reply: bytes = ACCEPTED) -> str:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await peer.request(1)
    assert head.startswith(b"POST /p/abort HTTP/1.1\r\n")
    assert b"\r\nauthorization: Bearer k\r\n" in head
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    body = await peer.request(length)
    await peer.send(reply)
    return body.decode()


@asynccontextmanager
async def rig_of(count: int, within: float = 5.0) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        rig = Rig([await stack.enter_async_context(listening()) for _ in range(count)], within)
        try:
            yield rig
        finally:
            await rig.aborter.close(0)
            rig.fleet.close()
            await asyncio.sleep(0.001)


@asynccontextmanager
async def calling(rig: Rig, target: AbortTarget = EVERYTHING) -> AsyncIterator[asyncio.Task[Any]]:
    async with asyncio.TaskGroup() as group:
        yield group.create_task(rig.aborter.abort(target, STUB))


def unasked(listener: Listener) -> bool:
    try:
        sock, _ = listener.sock.accept()
    except BlockingIOError:
        return True
    sock.close()
    return False


# -- abort calls


async def test_abort_goes_to_the_holder_only() -> None:
    async with rig_of(2) as rig:
        rig.run("job-1", on=0)
        rig.finish(rig.run("job-1", on=1))
        rig.run("job-2", on=1)
        async with calling(rig, AbortTarget(ids=("job-1",))) as call:
            assert await rig.next_abort(0) == "job-1"
        assert call.result() == [WorkerResult(rig.workers[0].url, 1)]
        assert await rig.aborter.abort(AbortTarget(ids=("job", "")), STUB) == [], "nobody runs under these"
        assert unasked(rig.listeners[0]) and unasked(rig.listeners[1])
        assert rig.closed == []


async def test_abort_of_everything() -> None:
    """``everything`` is each exchange of the format, once, grouped by worker; other formats' go on."""
    async with rig_of(2) as rig:
        rig.run("a", on=0)
        rig.run("b1", "b2", on=0)
        rig.run("c", on=1)
        rig.run("other", on=1, format=StubFormat(capability="other-generate"))
        async with calling(rig) as call:
            assert {await rig.next_abort(0) for _ in range(3)} == {"a", "b1", "b2"}
            assert await rig.next_abort(1) == "c"
        assert [result.aborted for result in call.result()] == [2, 1]
        assert unasked(rig.listeners[1])


def speaks(worker: Worker, capability: str) -> None:
    worker.infos = {capability: WorkerInfo("engine", capability, True)}


async def test_abort_reaches_other_routes_at_workers_that_speak_the_dialect() -> None:
    """By id and with all others; those at workers of another dialect go on, those that have none yet end."""
    async with rig_of(2) as rig:
        speaks(rig.workers[0], "stub-generate")
        speaks(rig.workers[1], "other-generate")
        relayed: Any = StubFormat(capability="other-generate|stub-generate")
        chat = rig.run("chat", on=0, format=relayed)
        rig.run("chat", on=1, format=relayed)
        rig.run("waits", on=None, format=relayed)
        rig.run("elsewhere", on=None, format=StubFormat(capability="other-generate|third-generate"))
        peer: Peer | None = None
        for target in (AbortTarget(ids=("chat",)), EVERYTHING):
            async with calling(rig, target) as call:
                peer = peer or await rig.listeners[0].accept()
                assert await answered(peer) == chat.ids.dispatch[0]
            assert WorkerResult(rig.workers[0].url, 1) in call.result()
        assert rig.closed == ["waits"]
        assert unasked(rig.listeners[1])


async def test_worker_that_hangs_delays_no_other() -> None:
    """The others are sent aborts at once, and the call ends within its limit and names who did not answer."""
    async with rig_of(2) as rig:
        rig.run("hung", on=0)
        rig.run("fine", on=1)
        async with calling(rig) as call:
            silent = await rig.listeners[0].accept()
            assert await rig.next_abort(1) == "fine"
            await silent.closed()
        assert call.result() == [
            WorkerResult(rig.workers[0].url, 0, "no answer within 5 s"),
            WorkerResult(rig.workers[1].url, 1),
        ]


def test_id_lingers_longer_than_an_engine_may_need_to_notice() -> None:
    assert LINGER > 4.0 + ABORT_TIMEOUT / 2


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", "answered 503"),
        (b"HTTP/1.1 404 No\r\nconnection: close\r\n\r\nno", "answered 404"),
        (b"nonsense\r\n\r\n", "the worker's reply is not HTTP/1.1"),
        (None, "the worker could not be reached"),
    ],
)
async def test_exchange_whose_abort_is_not_accepted_is_not_aborted(reply: bytes | None, error: str) -> None:
    """What the worker made of it is reported, and so is a worker that is gone."""
    async with rig_of(1) as rig:
        rig.run("a", on=0)
        if reply is None:
            rig.listeners[0].sock.close()
        async with calling(rig) as call:
            if reply is not None:
                peer = await rig.listeners[0].accept()
                await answered(peer, reply)
                peer.finish()
        assert call.result() == [WorkerResult(rig.workers[0].url, 0, error)]


async def pooled(rig: Rig) -> Peer:
    pool = rig.workers[0].pool
    connection = await pool.connect()
    peer = await rig.listeners[0].accept()
    connection.send(REQUEST, BODY)
    await peer.request()
    await peer.send(ACCEPTED)
    await connection.head()
    assert await body(connection) == b"ok"
    pool.give_back(connection)
    assert pool.idle == 1
    return peer


async def test_abort_uses_an_idle_connection_and_keeps_it() -> None:
    async with rig_of(1) as rig:
        rig.run("a", on=0)
        peer = await pooled(rig)
        async with calling(rig):
            assert await answered(peer) == "a"
        assert unasked(rig.listeners[0])
        assert rig.workers[0].pool.idle == 1


@pytest.mark.parametrize("how", ["close", "reset", "reset after reading"])
async def test_abort_over_a_stale_connection_is_sent_again_over_a_fresh_one(how: str) -> None:
    async with rig_of(1) as rig:
        rig.run("a", on=0)
        peer = await pooled(rig)
        if how == "close":
            peer.close()
        async with calling(rig) as call:
            if how == "reset":
                await asyncio.sleep(0)
            elif how == "reset after reading":
                await peer.request(1)
            if how != "close":
                peer.reset()
            assert await rig.next_abort(0) == "a"
        assert [result.aborted for result in call.result()] == [1]


async def test_abort_over_two_stale_connections_is_a_failure() -> None:
    async with rig_of(1) as rig:
        rig.run("a", on=0)
        (await pooled(rig)).close()
        async with calling(rig) as call:
            second = await rig.listeners[0].accept()
            await second.request(5)
            second.close()
        [result] = call.result()
        assert result.aborted == 0 and result.error
        assert unasked(rig.listeners[0])


# -- exchanges that ended unclean


async def test_abandoned_exchange_is_aborted_once_and_its_id_lingers() -> None:
    """One abort, for exactly that dispatch id; the id is not released before the engine must be done."""
    async with rig_of(1) as rig:
        rig.leave("job-1")
        assert rig.in_flight.claim(("job-1",)).private
        assert await rig.next_abort(0) == "job-1"
        assert len(rig.in_flight) == 2
        await until(lambda: len(rig.in_flight) == 1)
        assert not rig.in_flight.claim(("job-1",)).private
        assert unasked(rig.listeners[0])


@pytest.mark.parametrize("how", ["hangs", "gone", "refuses", "has none"])
async def test_ids_are_released_whatever_becomes_of_the_abort(how: str) -> None:
    """Also where the dialect has no abort: the engine finds out by itself while the ids linger."""
    async with rig_of(1) as rig:
        if how == "gone":
            rig.listeners[0].sock.close()
        rig.leave("job-1", format=SILENT if how == "has none" else STUB)
        if how == "refuses":
            await rig.next_abort(0, b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")
        await asyncio.sleep(1.9)
        assert len(rig.in_flight) == 1
        await until(lambda: len(rig.in_flight) == 0)


async def test_aborts_under_way_get_their_moment_at_the_end_of_the_process() -> None:
    async with rig_of(2) as rig:
        for number in range(2):
            rig.leave(f"job-{number}", on=number)
        async with asyncio.TaskGroup() as group:
            closing = group.create_task(rig.aborter.close(1.0))
            assert await rig.next_abort(0) == "job-0"
            silent = await rig.listeners[1].accept()
            await silent.closed()
        assert closing.done()


# -- floods


async def aborted_over(rig: Rig, connections: int, count: int) -> list[str]:
    """Return the ids of ``count`` aborts at the first worker, which come over ``connections`` and no more.

    No abort is answered before that many connections are open.
    """
    listener = rig.listeners[0]
    ids: list[str] = []
    peers = [await listener.accept() for _ in range(connections)]

    async def serve(peer: Peer) -> None:
        while True:
            ids.append(await answered(peer))

    tasks = [asyncio.get_running_loop().create_task(serve(peer)) for peer in peers]
    try:
        await until(lambda: len(ids) >= count)
        assert unasked(listener)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return sorted(ids)


JOBS = [f"job-{index:03}" for index in range(5 * ABORTS_AT_WORKER)]


@pytest.mark.parametrize(
    ("how", "connections"),
    [("batch", PER_EXCHANGE), ("left together", ABORTS_AT_WORKER), ("call", ABORTS_AT_WORKER)],
)
async def test_any_number_of_aborts_at_a_worker_goes_over_few_connections(how: str, connections: int) -> None:
    """Of a batch, of exchanges that were left together, and of a call that names all; all are named to it."""
    async with rig_of(1) as rig, AsyncExitStack() as stack:
        if how == "batch":
            rig.leave(*JOBS)
        elif how == "left together":
            for name in JOBS:
                rig.leave(name)
        else:
            for name in JOBS:
                rig.run(name, on=0)
            await stack.enter_async_context(calling(rig))
        assert await aborted_over(rig, connections, len(JOBS)) == JOBS


class Batch(StubFormat):
    """A request is the number of its prompts, each of which the engine can abort by its number."""

    def abort(self, worker: Any, request: object, ids: Ids) -> Sequence[UpstreamRequest]:
        assert isinstance(request, int)
        numbers = [part for part in ids.parts if part < request] if ids.parts else range(request)
        names = "+".join(f"{ids.dispatch[0]}_{part}" for part in numbers)
        return [self.call(worker, names)] if names else ()


def part(number: int) -> AbortTarget:
    return AbortTarget(engine_ids=(EngineId("job", None, number),))


async def test_abort_of_a_numbered_prompt_without_a_worker() -> None:
    """It is aborted after dispatch. An unknown part is not found; the only part is all of it."""
    batch: Any = Batch()
    async with rig_of(0) as rig:
        entry = rig.run("job", on=None, format=batch)
        entry.request = 2
        assert await rig.aborter.abort(part(2), batch) == []
        assert await rig.aborter.abort(part(1), batch) == [WorkerResult(None, 1)]
        assert (rig.closed, set(entry.aborted_before_dispatch), entry.aborted_entirely) == ([], {1}, False)
        entry.request = 1
        assert await rig.aborter.abort(part(0), batch) == [WorkerResult(None, 1)]
        assert (rig.closed, entry.aborted_entirely) == (["job"], True)
        rig.finish(entry)


async def test_prompts_aborted_before_dispatch_are_aborted_at_the_worker() -> None:
    batch: Any = Batch()
    async with rig_of(1) as rig:
        entry = rig.run("job", on=None, format=batch)
        entry.request = 3
        for number in (2, 1):
            await rig.aborter.abort(part(number), batch)
        entry.worker = rig.workers[0]
        rig.aborter.abort_early(entry, rig.workers[0])
        assert await rig.next_abort(0) == "job_1+job_2"
        assert rig.closed == []
        rig.finish(entry)
