"""A process that speaks for all: over a channel, with a supervisor played by the test."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.optional import AbortTarget, EngineId
from gateway.prefork import peers as channel
from gateway.prefork.aggregate import Aggregate, PreforkAborter
from gateway.prefork.frames import Frame, Frames, Verb
from gateway.prefork.peers import Peers, PeersUnavailable, State
from gateway.proxy.aborts import Aborter, WorkerResult
from gateway.telemetry.exposition import CurrentValues
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.snapshot import Snapshot
from gateway.upstream.address import Address
from tests.support.gateway import until
from tests.telemetry.support import BUCKETS, completed, count


def busy() -> Worker:
    """A worker with two requests of this process."""
    worker = Worker(Address.parse("http://w:1"))
    worker.in_flight = 2
    return worker


class Stage:
    """One process, and the other end of its channel."""

    def __init__(self, peers: Peers, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peers = peers
        fleet = [busy()]
        self.metrics = Metrics("p", BUCKETS, CurrentValues(lambda: fleet), supervisor=1)
        self.aggregate = Aggregate(peers, self.metrics)
        self._reader = reader
        self.writer = writer

    async def hears(self) -> Frame:
        """What the process says next."""
        async with asyncio.timeout(5):
            (frame,) = Frames().feed(await self._reader.readline())
        return frame

    def says(self, verb: Verb, body: object, number: int = 0) -> None:
        self.writer.write(Frame(verb, number, json.dumps(body).encode()).encode())


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    ours, theirs = socket.socketpair()
    peers = Peers(theirs)
    await peers.open()
    reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
    try:
        yield Stage(peers, reader, writer)
    finally:
        await peers.close()
        writer.close()
        await writer.wait_closed()


async def test_scrape_is_the_sum_of_what_all_say() -> None:
    async with stage() as one:
        count(one.metrics, completed())
        scrape = asyncio.ensure_future(one.aggregate.metrics())
        asked = await one.hears()
        assert asked.verb is Verb.METRICS
        one.says(Verb.STATE, {"wanted": 2, "serving": 2, "settled": True, "restarts": 5})
        one.says(Verb.ANSWERS, {"answers": [json.loads(asked.body)], "missing": 0}, asked.number)
        rendered = await scrape
        assert rendered is not None
        lines = rendered[0].decode().splitlines()
        assert 'p_output_tokens_total{model="m"} 6' in lines
        assert "p_process_restarts_total 5" in lines
        assert 'p_worker_inflight_requests{worker="http://w:1"} 4' in lines
        assert one.peers.state == State(2, 2, True, False, 5)


async def test_loads_are_those_of_the_others_and_the_last_known_without_a_supervisor() -> None:
    async with stage() as one:
        loads = asyncio.ensure_future(one.aggregate.loads())
        asked = await one.hears()
        one.says(
            Verb.ANSWERS, {"answers": [{"http://w:1": 2}, {"http://w:1": 1}], "missing": 0}, asked.number
        )
        assert await loads == {"http://w:1": 3}
        one.writer.close()
        await until(lambda: one.peers.lost)
        assert await one.aggregate.loads() == {"http://w:1": 3}
        assert await one.aggregate.metrics() is None


async def test_loads_are_not_waited_for_long_when_the_supervisor_is_stuck() -> None:
    """A probe of the gateway's health asks for them, and gives it a second at most."""
    async with stage() as one, asyncio.timeout(0.9):
        assert await one.aggregate.loads() == {}


async def test_process_tells_what_it_counted_when_it_is_asked_and_by_itself() -> None:
    async with stage() as one:
        count(one.metrics, completed())
        one.says(Verb.METRICS, None, 4)
        answer = await one.hears()
        assert (answer.verb, answer.number) == (Verb.ANSWER, 4)
        one.says(Verb.LOADS, None, 5)
        assert (await one.hears()).body == b'{"http://w:1": 2}'
        report = asyncio.ensure_future(one.aggregate.report())
        pushed = await one.hears()
        report.cancel()
        assert pushed.verb is Verb.COUNTED
        for said in (answer, pushed):
            assert Snapshot.of(json.loads(said.body)).numbers["output_tokens", "m"] == 3


async def test_gateway_that_drains_or_has_lost_its_supervisor_is_told_once_each() -> None:
    async with stage() as one:
        told: list[bool] = []
        one.peers.on_drain = lambda: told.append(one.peers.lost)
        one.says(Verb.STATE, {"draining": True})
        one.says(Verb.END, None)
        await until(lambda: one.peers.ended)
        assert told == [False]
        one.writer.close()
        await until(lambda: len(told) == 2)
        assert told == [False, True]


async def test_question_ends_when_the_supervisor_goes_or_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as one:
        with pytest.raises(PeersUnavailable, match="not answered within 0.01 s"):
            await one.peers.ask(Verb.LOADS, within=0.01)
        waiting = asyncio.ensure_future(one.peers.ask(Verb.LOADS))
        await one.hears()
        monkeypatch.setattr(channel, "_MOST_UNREAD", -1)
        with pytest.raises(PeersUnavailable, match="stuck"):
            await one.peers.ask(Verb.LOADS)
        one.writer.close()
        with pytest.raises(PeersUnavailable, match="gone"):
            await waiting


class Local:
    """Aborts of this process, made up."""

    def __init__(self, *results: WorkerResult) -> None:
        self.results = results
        self.told: list[tuple[AbortTarget, AnyFormat]] = []

    async def abort(self, target: AbortTarget, format: AnyFormat) -> Sequence[WorkerResult]:
        await asyncio.sleep(0)
        self.told.append((target, format))
        return self.results


class Format:
    name = "fmt"


FORMAT = cast(AnyFormat, Format())


def _wide(one: Stage, local: Local) -> PreforkAborter:
    return PreforkAborter(one.peers, cast(Aborter, local), {"fmt": FORMAT})


@pytest.mark.parametrize(
    ("answers", "missing", "expected"),
    [
        ([[["a", 2, None], ["b", 1, None]]], 0, [("a", 3, None), ("b", 1, None)]),
        ([[["a", 0, "slow"]], []], 0, [("a", 1, "slow")]),
        ([], 0, [("a", 1, None)]),
        ([], 1, [("a", 1, None), (None, 0, "1 of the gateway's processes did not answer")]),
    ],
)
async def test_abort_is_told_to_all_and_summed_by_worker(
    answers: list[Any], missing: int, expected: list[tuple[str | None, int, str | None]]
) -> None:
    async with stage() as one:
        local = Local(WorkerResult("a", 1))
        target = AbortTarget(ids=("x", "\ud800"), engine_ids=(EngineId("x"), EngineId("y", "/p", 3)))
        results = asyncio.ensure_future(_wide(one, local).abort(target, FORMAT))
        asked = await one.hears()
        named = {"ids": ["x", "\ud800"], "spelled": [["x", None, None], ["y", "/p", 3]]}
        assert json.loads(asked.body) == {"format": "fmt", "everything": False, **named}
        one.says(Verb.ANSWERS, {"answers": answers, "missing": missing}, asked.number)
        assert [(each.worker, each.aborted, each.error) for each in await results] == expected
        assert local.told == [(target, FORMAT)]


async def test_abort_without_a_supervisor_says_what_was_not_reached() -> None:
    async with stage() as one:
        one.writer.close()
        await until(lambda: one.peers.lost)
        first, second = await _wide(one, Local(WorkerResult("a", 1))).abort(AbortTarget(ids=("x",)), FORMAT)
        assert first == WorkerResult("a", 1)
        assert second.error is not None and "could not be told" in second.error


async def test_abort_for_another_process_is_done_here() -> None:
    async with stage() as one:
        local = Local(WorkerResult("a", 1), WorkerResult(None, 2, "why"))
        wide = _wide(one, local)
        spelled = [["y", None, None], ["x", "/p", 3]]
        one.says(Verb.ABORT, {"format": "fmt", "everything": True, "ids": ["a"], "spelled": spelled}, 9)
        answer = await one.hears()
        assert (answer.verb, answer.number) == (Verb.ANSWER, 9)
        assert json.loads(answer.body) == [["a", 1, None], [None, 2, "why"]]
        target = AbortTarget(True, ("a",), (EngineId("y"), EngineId("x", "/p", 3)))
        assert local.told == [(target, FORMAT)]
        await wide.close()
