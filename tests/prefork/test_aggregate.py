"""Questions of one process to all others, over a channel whose supervisor is played by the test."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.fleet.cordons import BY_OWNER, Cordons
from gateway.fleet.members import FleetMembership
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.optional import AbortTarget, EngineId
from gateway.prefork import peers as channel
from gateway.prefork.aggregate import Aggregate, PreforkAborter
from gateway.prefork.frames import Frame, FrameParser, Verb
from gateway.prefork.id_table import IdTable
from gateway.prefork.peers import Peers, PeersUnavailable
from gateway.prefork.replication import PeerCordons, send_cordons
from gateway.proxy.aborts import Aborter, WorkerResult
from gateway.stores.memory import MemoryStore
from gateway.telemetry.exporter import MetricsExporter
from gateway.telemetry.exposition import CurrentValues
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.snapshot import Snapshot
from gateway.upstream.address import Address
from tests.fleet.support import ProbedWorkers, fleet_of
from tests.support.gateway import until
from tests.telemetry.support import BUCKETS, completed, count


class Stage:
    """One process, and the supervisor's end of its channel, which the test plays."""

    def __init__(self, peers: Peers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peers = peers
        worker = Worker(Address.parse("http://w:1"))
        worker.in_flight = 2
        self.metrics = Metrics(BUCKETS)
        values = CurrentValues(lambda: [worker])
        self.exporter = MetricsExporter("p", BUCKETS, self.metrics.tallies, values, supervisor=1)
        self.aggregate = Aggregate(peers, self.exporter)
        self._reader = reader
        self.writer = writer

    async def receive(self) -> Frame:
        """Return the next frame that the process sends."""
        async with asyncio.timeout(5):
            (frame,) = FrameParser().feed(await self._reader.readline())
        return frame

    def send(self, verb: Verb, body: object, number: int = 0) -> None:
        self.writer.write(Frame(verb, number, json.dumps(body).encode()).encode())

    def answer(self, question: Frame, *answers: object, missing: int = 0) -> None:
        self.send(Verb.ANSWERS, {"answers": answers, "missing": missing}, question.number)


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    ours, theirs = socket.socketpair()
    peers = Peers(theirs, IdTable(2).of(0))
    await peers.open()
    reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
    try:
        yield Stage(peers, reader, writer)
    finally:
        await peers.close()
        writer.close()
        await writer.wait_closed()


async def test_loads_are_those_of_the_others_and_the_last_known_without_a_supervisor() -> None:
    async with stage() as one:
        loads = asyncio.ensure_future(one.aggregate.loads())
        one.answer(await one.receive(), {"http://w:1": 2}, {"http://w:1": 1})
        assert await loads == {"http://w:1": 3}
        one.writer.close()
        await until(lambda: one.peers.supervisor_lost)
        assert await one.aggregate.loads() == {"http://w:1": 3}
        assert await one.aggregate.metrics() is None


@pytest.mark.virtual_time
async def test_loads_of_a_stuck_supervisor_are_awaited_for_a_fifth_of_a_second() -> None:
    """A health check of the gateway asks for them, and may have a timeout of one second."""
    async with stage() as one:
        started = asyncio.get_running_loop().time()
        assert await one.aggregate.loads() == {}
        assert asyncio.get_running_loop().time() - started == pytest.approx(0.2)


async def test_process_reports_its_counts_by_itself() -> None:
    async with stage() as one:
        count(one.metrics, completed())
        reporting = asyncio.ensure_future(one.aggregate.report_counts())
        report = await one.receive()
        reporting.cancel()
        assert report.verb is Verb.COUNTS
        assert Snapshot.of(json.loads(report.body)).numbers["output_tokens", "m"] == 3


@pytest.mark.virtual_time
async def test_question_fails_when_the_supervisor_is_late_stuck_or_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as one:
        with pytest.raises(PeersUnavailable, match="not answered within 3 s"):
            await one.peers.ask(Verb.LOADS, within=3)
        await one.receive()
        waiting = asyncio.ensure_future(one.peers.ask(Verb.LOADS))
        await one.receive()
        monkeypatch.setattr(channel, "_MAX_UNREAD", -1)
        with pytest.raises(PeersUnavailable, match="does not respond"):
            await one.peers.ask(Verb.LOADS)
        one.writer.close()
        with pytest.raises(PeersUnavailable, match="the supervisor has exited"):
            await waiting


class LocalAborter:
    """An aborter of this process that records calls and returns fixed results."""

    def __init__(self, *results: WorkerResult) -> None:
        self.results = results
        self.calls: list[tuple[AbortTarget, AnyFormat]] = []

    async def abort(self, target: AbortTarget, format: AnyFormat) -> Sequence[WorkerResult]:
        await asyncio.sleep(0)
        self.calls.append((target, format))
        return self.results


FORMAT = cast(AnyFormat, SimpleNamespace(name="fmt"))


def _aborter(one: Stage, local: LocalAborter) -> PreforkAborter:
    return PreforkAborter(one.peers, cast(Aborter, local), {"fmt": FORMAT})


@pytest.mark.parametrize(
    ("answers", "missing", "expected"),
    [
        ([[["a", 2, None], ["b", 1, None]]], 0, [("a", 3, None), ("b", 1, None)]),
        ([[["a", 0, "slow"]], [], [["a", 1, None]]], 0, [("a", 2, "slow")]),
        ([], 0, [("a", 1, None)]),
        ([], 1, [("a", 1, None), (None, 0, "1 of the gateway's processes did not answer")]),
    ],
)
async def test_abort_reaches_all_processes_and_is_summed_by_worker(
    answers: list[Any], missing: int, expected: list[tuple[str | None, int, str | None]]
) -> None:
    async with stage() as one:
        local = LocalAborter(WorkerResult("a", 1))
        target = AbortTarget(ids=("x", "\ud800"), engine_ids=(EngineId("x"), EngineId("y", "/p", 3)))
        results = asyncio.ensure_future(_aborter(one, local).abort(target, FORMAT))
        question = await one.receive()
        named = {"ids": ["x", "\ud800"], "engine_ids": [["x", None, None], ["y", "/p", 3]]}
        assert json.loads(question.body) == {"format": "fmt", "everything": False, **named}
        one.answer(question, *answers, missing=missing)
        assert [(each.worker, each.aborted, each.error) for each in await results] == expected
        assert local.calls == [(target, FORMAT)]


async def test_abort_without_a_supervisor_reports_that_the_others_were_not_asked() -> None:
    async with stage() as one:
        one.writer.close()
        await until(lambda: one.peers.supervisor_lost)
        aborter = _aborter(one, LocalAborter(WorkerResult("a", 1)))
        first, second = await aborter.abort(AbortTarget(ids=("x",)), FORMAT)
        assert first == WorkerResult("a", 1)
        assert second.error is not None and "could not be asked" in second.error


async def test_abort_for_another_process_is_done_here() -> None:
    async with stage() as one:
        local = LocalAborter(WorkerResult("a", 1), WorkerResult(None, 2, "why"))
        aborter = _aborter(one, local)
        engine_ids = [["y", None, None], ["x", "/p", 3]]
        question = {"format": "fmt", "everything": True, "ids": ["a"], "engine_ids": engine_ids}
        one.send(Verb.ABORT, question, 9)
        answer = await one.receive()
        assert (answer.verb, answer.number) == (Verb.ANSWER, 9)
        assert json.loads(answer.body) == [["a", 1, None], [None, 2, "why"]]
        target = AbortTarget(True, ("a",), (EngineId("y"), EngineId("x", "/p", 3)))
        assert local.calls == [(target, FORMAT)]
        await aborter.close()


async def test_cordon_counts_here_although_the_supervisor_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """That the others may not know it is logged."""
    async with stage() as one:
        fleet, health = fleet_of(), cast(Any, ProbedWorkers())
        cordons = Cordons(fleet, MemoryStore(), partial(send_cordons, one.peers))
        members = FleetMembership(fleet, health, None, cordons)
        one.writer.close()
        await until(lambda: one.peers.supervisor_lost)
        await cordons.write({("http://w:1", BY_OWNER): True})
        await PeerCordons(one.peers, cordons, members).fetch()
    assert cordons.of("http://w:1") == {BY_OWNER}
    assert "may not know which workers are cordoned" in caplog.text and "not known which" in caplog.text
