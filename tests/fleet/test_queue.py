"""Requests that wait for a worker: whose turn it is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from gateway.errors import Draining, NoWorker, UnknownModel
from gateway.fleet import queue as queues
from gateway.fleet.address import Address
from gateway.fleet.queue import Queue
from gateway.fleet.registry import Fleet
from gateway.fleet.states import WorkerEvent
from gateway.fleet.worker import Worker
from gateway.formats.base import WorkerInfo
from gateway.routing.policy import LeastInFlight
from tests.support import until


class Counts:
    def __init__(self) -> None:
        self.waits: list[float] = []
        self.refused: list[str] = []

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def not_held(self, reason: str) -> None:
        self.refused.append(reason)


class Stage:
    def __init__(self, **limits: float) -> None:
        self.fleet = Fleet(LeastInFlight(random.Random(0)), 1.0)
        self.counts = Counts()
        given = {"seconds": 30, "requests": 1000, "size": 1000, **limits}
        self.queue = Queue(
            self.fleet,
            self.counts,
            seconds=given["seconds"],
            requests=int(given["requests"]),
            size=int(given["size"]),
        )
        #: Names of those whose turn came, in order, and the worker each got.
        self.served: list[tuple[str, Worker]] = []

    def member(self, name: str, *models: str) -> Worker:
        worker = Worker(Address.parse(f"http://{name}:1"))
        worker.infos = {"f": WorkerInfo("e", "cap", True, models=models)}
        self.fleet.add(worker)
        return worker

    def ready(self, name: str, *models: str) -> Worker:
        worker = self.member(name, *models)
        self.fleet.on(worker, WorkerEvent.SERVES)
        return worker

    async def request(
        self, name: str, model: str | None = None, tried: dict[Worker, object] | None = None, size: int = 1
    ) -> None:
        tried = tried or {}
        await self.queue.wait(("cap", model), tried, size=size, until=self.queue.deadline())
        self.served.append((name, self.fleet.lease("cap", model, queues.excluded(tried))))

    @contextmanager
    def requests(self, *names: str, model: str | None = None) -> Iterator[list[asyncio.Task[None]]]:
        tasks = [asyncio.get_running_loop().create_task(self.request(name, model)) for name in names]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.served]


@asynccontextmanager
async def stage(**limits: float) -> AsyncIterator[Stage]:
    it = Stage(**limits)
    serving = asyncio.get_running_loop().create_task(it.queue.serve())
    await asyncio.sleep(0)
    yield it
    serving.cancel()


async def waiting(it: Stage, count: int) -> None:
    await until(lambda: it.queue.waiting == count)


async def test_first_come_is_first_served() -> None:
    async with stage() as it:
        with it.requests("a", "b", "c"):
            await waiting(it, 3)
            it.ready("w")
            await until(lambda: len(it.served) == 3)
            assert it.names == ["a", "b", "c"]


async def test_line_for_a_model_that_is_away_holds_up_no_other() -> None:
    async with stage() as it:
        it.member("away", "m1")
        with it.requests("a", model="m1"), it.requests("b", model="m2"):
            await waiting(it, 2)
            it.ready("w", "m2")
            await until(lambda: it.names == ["b"])
            assert it.queue.has_line("cap", "m1") and not it.queue.has_line("cap", "m2")


async def test_line_is_not_given_to_the_first_worker_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes a moment later gets its share."""
    monkeypatch.setattr(queues, "ROUND", 4)
    async with stage() as it:
        with it.requests(*map(str, range(20))):
            await waiting(it, 20)
            first = it.ready("one")
            await until(lambda: len(it.served) == 4)
            second = it.ready("two")
            await until(lambda: len(it.served) == 20)
            assert first.in_flight == second.in_flight == 10


async def test_request_goes_to_no_worker_that_had_it_before() -> None:
    """And those behind it do not wait for that; another process behind the URL is another worker."""
    async with stage() as it:
        worker = it.ready("w")
        task = asyncio.get_running_loop().create_task(it.request("tried", tried={worker: worker.life}))
        with it.requests("other"):
            await until(lambda: it.names == ["other"])
            assert it.queue.waiting == 1
            it.fleet.on(worker, WorkerEvent.DIE)
            it.fleet.on(worker, WorkerEvent.SERVES)
            await until(lambda: it.names == ["other", "tried"])
            await task


async def test_time_is_up_for_each_by_itself() -> None:
    async with stage(seconds=0.05) as it:
        with it.requests("a", "b") as tasks:
            for task in tasks:
                with pytest.raises(NoWorker):
                    await task
        assert (it.queue.waiting, it.counts.refused) == (0, ["timeout", "timeout"])
        assert all(wait > 0.04 for wait in it.counts.waits)


async def test_room_is_bounded_by_number_and_by_bytes() -> None:
    async with stage(requests=2, size=10) as it:
        with it.requests("a"):
            await waiting(it, 1)
            with pytest.raises(NoWorker, match="too many"):
                await it.request("large", size=10)
            with it.requests("b"):
                await waiting(it, 2)
                with pytest.raises(NoWorker, match="too many"):
                    await it.request("c")
        await waiting(it, 0)
        assert it.counts.refused == ["full", "full"]
        it.ready("w")
        await it.request("large", size=10)  # what left is counted no more


async def test_one_that_is_interrupted_leaves_the_line() -> None:
    async with stage() as it:
        with it.requests("a", "b") as (first, second):
            await waiting(it, 2)
            first.cancel()
            await waiting(it, 1)
            it.ready("w")
            await second
            assert it.names == ["b"]


async def test_closing_ends_all_waiting_for_good() -> None:
    async with stage() as it:
        with it.requests("a", "b") as tasks:
            await waiting(it, 2)
            it.queue.close()
            for task in tasks:
                with pytest.raises(Draining):
                    await task
            with pytest.raises(Draining):
                await it.request("c")


async def test_model_that_turns_out_to_be_nobodys_is_told_so() -> None:
    async with stage() as it:
        with it.requests("a", model="m9") as (task,):
            await waiting(it, 1)
            it.ready("one", "m1")
            it.ready("two", "m2")
            with pytest.raises(UnknownModel):
                await task


async def test_change_that_nobody_told_of_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "GLANCE", 0.01)
    async with stage() as it:
        worker = it.ready("w", "m1")
        it.ready("v", "m2")
        away = it.member("away", "m3")
        with it.requests("a", model="m3") as (task,):
            await waiting(it, 1)
            it.fleet.describe(worker, {"f": WorkerInfo("e", "cap", True, models=("m1", "m3"))})
            await task
            assert it.served == [("a", worker)] and away.in_flight == 0


def test_queue_is_off_without_seconds() -> None:
    assert not Stage(seconds=0).queue.on and Stage(seconds=0.1).queue.on
    assert Stage(seconds=10).queue.deadline() >= time.monotonic() + 9
