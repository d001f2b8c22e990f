"""Requests that wait for a worker: whose turn it is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from gateway.errors import Cancelled, GatewayError, NoWorker, Overloaded, UnknownModel
from gateway.fleet import queue as queues
from gateway.fleet.queue import Queue
from gateway.fleet.states import WorkerEvent, WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.loop.stepper import CoroutineStepper
from tests.fleet.support import CAPABILITY, fleet_with, member
from tests.support.gateway import until

pytestmark = pytest.mark.virtual_time


class Counts:
    def __init__(self) -> None:
        self.waits: list[float] = []
        self.refused: list[str] = []

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def queue_refused(self, reason: str) -> None:
        self.refused.append(reason)


class Driven(CoroutineStepper):
    """A request as exchanges are run: it goes on within the call that gives it its turn."""

    def __init__(self, request: Coroutine[Any, Any, None]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.start(self._run(request))

    def __await__(self) -> Generator[Any, None, None]:
        return self.done.__await__()

    def cancel(self) -> None:
        self.interrupt(Cancelled("left"))

    async def _run(self, request: Coroutine[Any, Any, None]) -> None:
        try:
            await request
            self.done.set_result(None)
        except GatewayError as error:
            self.done.set_exception(error)
            self.done.exception()  # a test need not look at it


class Stage:
    def __init__(
        self, *, most: int | None = None, seconds: float = 30, requests: int = 1000, size: int = 1000
    ) -> None:
        self.fleet = fleet_with(most_in_flight=most)
        self.counts = Counts()
        limits: Any = {"seconds": seconds, "requests": requests, "size": size}
        self.queue = Queue(self.fleet, self.counts, **limits, limited=most is not None)
        #: Names of those whose turn came, in order, and the worker each got.
        self.served: list[tuple[str, Worker]] = []

    def member(self, name: str, *models: str) -> Worker:
        worker = member(name, *models, state=WorkerState.JOINING)
        self.fleet.add(worker)
        return worker

    def ready(self, name: str, *models: str) -> Worker:
        worker = self.member(name, *models)
        self.fleet.apply_event(worker, WorkerEvent.SERVES)
        return worker

    def lease(self) -> Worker:
        return self.fleet.lease(CAPABILITY, None)

    async def request(
        self, name: str, model: str | None = None, tried: dict[Worker, object] | None = None, size: int = 1
    ) -> None:
        tried = tried or {}
        await self.queue.wait((CAPABILITY, model), tried, size=size, until=self.queue.deadline())
        self.served.append((name, self.fleet.lease(CAPABILITY, model, queues.excluded(tried))))

    @contextmanager
    def requests(self, *names: str, model: str | None = None) -> Iterator[list[Driven]]:
        tasks = [Driven(self.request(name, model)) for name in names]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.served]


@asynccontextmanager
async def stage(**limits: Any) -> AsyncIterator[Stage]:
    it = Stage(**limits)
    serving = asyncio.get_running_loop().create_task(it.queue.serve())
    await asyncio.sleep(0)
    yield it
    serving.cancel()


async def waiting(it: Stage, count: int) -> None:
    await until(lambda: it.queue.waiting == count)


async def test_requests_for_another_model_do_not_wait_for_each_other() -> None:
    async with stage() as it:
        it.member("away", "m1")
        with it.requests("a", model="m1"), it.requests("b", model="m2"):
            await waiting(it, 2)
            it.ready("w", "m2")
            await until(lambda: it.names == ["b"])
            assert it.queue.has_earlier(CAPABILITY, "m1") and not it.queue.has_earlier(CAPABILITY, "m2")


async def test_first_usable_worker_does_not_get_all_queued_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "ROUND", 4)
    async with stage() as it:
        with it.requests(*map(str, range(20))):
            await waiting(it, 20)
            first = it.ready("one")
            await until(lambda: len(it.served) == 4)
            second = it.ready("two")
            await until(lambda: len(it.served) == 20)
            assert first.in_flight == second.in_flight == 10


async def test_request_is_not_sent_to_a_worker_again() -> None:
    """Later requests do not wait for that; another process at the URL is another worker."""
    async with stage() as it:
        worker = it.ready("w")
        task = Driven(it.request("tried", tried={worker: worker.incarnation}))
        with it.requests("other"):
            await until(lambda: it.names == ["other"])
            assert it.queue.waiting == 1
            it.fleet.apply_event(worker, WorkerEvent.DIE)
            it.fleet.apply_event(worker, WorkerEvent.SERVES)
            await until(lambda: it.names == ["other", "tried"])
            await task


async def test_each_request_has_its_own_deadline() -> None:
    async with stage(seconds=0.05) as it:
        with it.requests("a", "b") as tasks:
            for task in tasks:
                with pytest.raises(NoWorker):
                    await task
        assert (it.queue.waiting, it.counts.refused) == (0, ["timeout", "timeout"])
        assert all(wait > 0.04 for wait in it.counts.waits)


async def test_queue_is_bounded_by_number_and_by_bytes() -> None:
    async with stage(requests=2, size=10) as it:
        with it.requests("a"):
            await waiting(it, 1)
            with pytest.raises(Overloaded, match="too many"):
                await it.request("large", size=10)
            with it.requests("b"):
                await waiting(it, 2)
                with pytest.raises(Overloaded, match="too many"):
                    await it.request("c")
        await waiting(it, 0)
        assert it.counts.refused == ["full", "full"]
        it.ready("w")
        await it.request("large", size=10)  # what left is counted no more


async def test_request_for_an_unknown_model_gets_its_error() -> None:
    async with stage() as it:
        with it.requests("a", model="m9") as (task,):
            await waiting(it, 1)
            it.ready("one", "m1")
            it.ready("two", "m2")
            with pytest.raises(UnknownModel):
                await task


async def test_change_that_was_not_reported_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "LOOK_INTERVAL", 0.01)
    async with stage() as it:
        worker = it.ready("w", "m1")
        it.ready("v", "m2")
        away = it.member("away", "m3")
        with it.requests("a", model="m3") as (task,):
            await waiting(it, 1)
            it.fleet.describe(worker, {"echo": WorkerInfo("engine", CAPABILITY, True, models=("m1", "m3"))})
            await task
            assert it.served == [("a", worker)] and away.in_flight == 0


async def test_request_waits_for_a_slot_as_long_as_it_takes_and_gets_it_in_its_turn() -> None:
    async with stage(most=1, seconds=0.01) as it:
        it.ready("w")
        worker = it.lease()
        with it.requests("a", "b"):
            await waiting(it, 2)
            await asyncio.sleep(0.04)
            assert it.queue.waiting == 2
            it.fleet.release(worker)
            await until(lambda: it.names == ["a"])
            assert worker.in_flight == 1 and it.queue.has_earlier(CAPABILITY, None)
            it.fleet.release(worker)
            await until(lambda: it.names == ["a", "b"])
        assert it.counts.refused == []


async def test_request_that_arrives_as_a_slot_becomes_free_does_not_overtake() -> None:
    """Whatever model it is for: the workers may be the same."""
    async with stage(most=1, seconds=0) as it:
        it.ready("w", "m1")
        worker = it.lease()
        with it.requests("first"):
            await waiting(it, 1)
            assert not it.queue.has_earlier(CAPABILITY, "m1")
            it.fleet.release(worker)
            assert it.queue.has_earlier(CAPABILITY, "m1")
            await until(lambda: it.names == ["first"])


async def test_line_whose_first_request_has_waited_longest_goes_first() -> None:
    async with stage(most=1, seconds=0) as it:
        it.ready("w", "m1", "m2")
        worker = it.lease()
        with it.requests("a", model="m1"), it.requests("b", model="m2"), it.requests("c", model="m1"):
            await waiting(it, 3)
            for served in (["a"], ["a", "b"], ["a", "b", "c"]):
                it.fleet.release(worker)
                await until(lambda served=served: it.names == served)  # type: ignore[misc]


@pytest.mark.parametrize("seconds", [0, 0.03])
async def test_all_that_wait_for_a_slot_are_refused_when_the_last_worker_leaves(seconds: float) -> None:
    """At once if requests do not wait for a usable worker, else when each has waited so long for that."""
    async with stage(most=1, seconds=seconds) as it:
        worker = it.ready("w")
        it.lease()
        with it.requests("a", "b") as tasks:
            await waiting(it, 2)
            await asyncio.sleep(0.04)
            it.fleet.apply_event(worker, WorkerEvent.DIE)
            gone = time.monotonic()
            for task in tasks:
                with pytest.raises(NoWorker):
                    await task
            assert time.monotonic() - gone == pytest.approx(seconds)


async def test_request_that_was_sent_to_every_worker_is_refused() -> None:
    async with stage(most=1, seconds=0) as it:
        one, two = it.ready("one"), it.ready("two")
        for _ in range(2):
            it.lease()
        task = Driven(it.request("tried", tried={one: one.incarnation}))
        with it.requests("other"):
            await waiting(it, 2)
            it.fleet.release(one)
            await until(lambda: it.names == ["other"])
            it.fleet.apply_event(two, WorkerEvent.DIE)
            with pytest.raises(NoWorker, match="any more"):
                await task


async def test_no_worker_ever_has_more_requests_than_allowed() -> None:
    """In storms of arrivals, ends and disconnects; all others are served in the order of their arrival."""
    choice = random.Random(7)
    async with stage(most=3, seconds=0) as it:
        workers = [it.ready("one"), it.ready("two")]
        for _ in range(6):
            it.lease()
        tasks = {str(number): Driven(it.request(str(number))) for number in range(200)}
        await waiting(it, 200)
        leavers = set(choice.sample(sorted(tasks), 60))
        while len(it.served) < 140:
            for name in choice.sample(sorted(leavers), min(len(leavers), 5)):
                leavers.discard(name)
                tasks[name].cancel()
            it.fleet.release(choice.choice([worker for worker in workers if worker.in_flight]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert all(worker.in_flight <= 3 for worker in workers)
        names = [int(name) for name in it.names]
        assert names == sorted(names) and it.queue.waiting == 0


async def test_queue_is_off_without_seconds_and_slots() -> None:
    assert not Stage(seconds=0).queue.enabled
    assert Stage(seconds=0.1).queue.enabled and Stage(seconds=0, most=1).queue.enabled
