"""A body under which two workers died is given to no third."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import httpx
import pytest

from gateway.errors import PoisonedRequest
from gateway.proxy import query_of_death
from gateway.proxy.body_release import BodyRelease
from gateway.proxy.live import LiveExchange
from gateway.proxy.query_of_death import (
    CAPACITY,
    GRACE,
    SAME_DEATH,
    STEP,
    Finding,
    QueryOfDeathGuard,
    RecentTable,
    digest,
    digest_in_steps,
)
from gateway.sim import Pace, SimConfig, SimServer
from tests.support.gateway import Rig, arrived, generates, rig, until
from tests.support.generate import ID, JSON, KINDS, PROMPT, body_of

BODY = digest(b"deadly")
OTHER = digest(b"harmless")
URL = "http://w:1"


def refused(guard: QueryOfDeathGuard, now: float, body: bytes = BODY) -> bool:
    try:
        guard.check(body, now)
    except PoisonedRequest:
        return True
    return False


def killed(guard: QueryOfDeathGuard, now: float, body: bytes = BODY) -> object:
    incarnation = object()
    guard.reply_broke(body, incarnation, now)
    guard.worker_died(URL, incarnation, now)
    return incarnation


def test_body_under_which_two_workers_died_is_refused_and_no_other() -> None:
    guard = QueryOfDeathGuard(60)
    killed(guard, 0)
    assert not guard.armed and not refused(guard, 1), "after one"
    killed(guard, 60)
    assert guard.armed and refused(guard, 61)
    assert not refused(guard, 61, OTHER)


def test_deaths_further_apart_than_the_window_are_unrelated() -> None:
    guard = QueryOfDeathGuard(60)
    killed(guard, 0)
    killed(guard, 61)
    assert not refused(guard, 62)
    killed(guard, 100)
    assert refused(guard, 101), "the later two are close enough"


@pytest.mark.parametrize("order", ["broke-first", "died-first"])
@pytest.mark.parametrize(("apart", "counts"), [(GRACE, True), (GRACE + 1, False)])
def test_broken_reply_and_dead_worker_belong_together_when_close(
    order: str, apart: float, counts: bool
) -> None:
    guard = QueryOfDeathGuard(60)
    for start in (0.0, 30.0):
        incarnation = object()
        if order == "broke-first":
            guard.reply_broke(BODY, incarnation, start)
            guard.worker_died(URL, incarnation, start + apart)
        else:
            guard.worker_died(URL, incarnation, start)
            guard.reply_broke(BODY, incarnation, start + apart)
    assert refused(guard, 45) is counts


def test_only_deaths_count_and_a_worker_dies_once_however_often_the_body_ran_there() -> None:
    """A group of samples of one prompt is sent as many requests with one body."""
    guard, incarnation = QueryOfDeathGuard(60), object()
    for _ in range(4):
        guard.reply_broke(BODY, object(), 0)
        guard.reply_broke(BODY, incarnation, 0)
    guard.worker_died(URL, incarnation, 0)
    for _ in range(4):
        guard.reply_broke(BODY, incarnation, 1)
    assert not refused(guard, 2)


def test_body_stays_refused_while_it_is_tried_and_is_forgotten_a_window_after() -> None:
    guard = QueryOfDeathGuard(60)
    killed(guard, 0)
    killed(guard, 0)
    assert all(refused(guard, now) for now in (50, 100, 150))
    assert not refused(guard, 211)
    assert not guard.armed
    killed(guard, 212)
    assert not refused(guard, 213)


def test_any_other_request_disarms_the_shield_once_nothing_is_refused() -> None:
    guard = QueryOfDeathGuard(60)
    killed(guard, 0)
    killed(guard, 0)
    assert not refused(guard, 61, OTHER)
    assert not guard.armed


class Guards:
    """The guards of several processes, which notify each other at once."""

    def __init__(self, count: int = 2) -> None:
        self.now = 0.0
        self.notified = 0
        self.all = [QueryOfDeathGuard(60, partial(self._notify, number)) for number in range(count)]

    def _notify(self, sender: int, findings: Sequence[Finding]) -> None:
        self.notified += 1
        for number, guard in enumerate(self.all):
            if number != sender:
                guard.receive(findings, self.now)

    def kill(self, number: int, url: str, now: float) -> None:
        """Let the worker at ``url`` die under the body, in the eyes of one process."""
        self.now, incarnation = now, object()
        self.all[number].reply_broke(BODY, incarnation, now)
        self.all[number].worker_died(url, incarnation, now)

    def refused(self, now: float) -> list[bool]:
        self.now = now
        return [refused(guard, now) for guard in self.all]


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 2)])
def test_deaths_that_two_processes_notice_count_in_all(order: tuple[int, int]) -> None:
    guards = Guards(3)
    for number, process in enumerate(order):
        assert guards.refused(59.0 * number) == [False] * 3
        guards.kill(process, f"http://w:{number}", 59.0 * number)
    assert all(guard.armed for guard in guards.all)
    assert guards.refused(60) == [True] * 3


def test_one_death_that_two_processes_notice_is_one_and_two_of_a_restarted_worker_are_two() -> None:
    guards = Guards()
    guards.kill(0, URL, 0)
    guards.kill(1, URL, GRACE)
    assert guards.refused(11) == [False] * 2, "each had the body there as the worker died"
    guards.kill(1, URL, GRACE + 5)
    assert guards.refused(16) == [True] * 2, "the second process has noticed both"
    guards = Guards()
    guards.kill(0, URL, 0)
    guards.kill(1, URL, SAME_DEATH + 1)
    assert guards.refused(SAME_DEATH + 2) == [True] * 2, "too late to be the first one"


def test_body_that_one_process_refuses_stays_refused_in_all_and_they_are_notified_once_a_second() -> None:
    guards = Guards()
    guards.kill(0, "http://w:1", 0)
    guards.kill(1, "http://w:2", 0)
    notified = guards.notified
    for tenth in range(1, 1000):
        guards.now = tenth / 10
        assert refused(guards.all[0], guards.now)
    assert guards.notified - notified <= 100
    assert guards.refused(158) == [True] * 2
    assert guards.refused(220) == [False] * 2


def test_process_that_starts_learns_what_the_others_found_within_the_window() -> None:
    guards, late, too_late = Guards(), QueryOfDeathGuard(60), QueryOfDeathGuard(60)
    guards.kill(0, "http://w:1", 0)
    late.receive(guards.all[1].findings(30), 30)
    too_late.receive(guards.all[1].findings(30), 70)
    killed(too_late, 70)
    killed(late, 31)
    assert refused(late, 32) and not refused(too_late, 71)
    guards.kill(1, "http://w:2", 40)
    next_one = QueryOfDeathGuard(60)
    next_one.receive(guards.all[0].findings(50), 50)
    assert refused(next_one, 51)


@pytest.mark.parametrize("size", [0, 10, STEP - 1, STEP, 2 * STEP + 5])
@pytest.mark.parametrize("cuts", [(), ((0, 3), (5, 7))])
def test_digest_is_the_same_in_steps_and_of_what_is_left(
    size: int, cuts: tuple[tuple[int, int], ...]
) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    body, left = body[:size], bytearray(body[:size])
    for start, end in reversed(cuts):
        del left[start:end]
    steps = digest_in_steps(body, cuts)
    count = 0
    with pytest.raises(StopIteration) as done:
        while True:
            next(steps)
            count += 1
    assert done.value.value == digest(body, cuts) == digest(bytes(left))
    assert size // STEP <= count <= size // STEP + 1 + len(cuts)


def test_table_forgets_the_oldest_beyond_its_capacity() -> None:
    table: RecentTable[int, int] = RecentTable(60)
    for key in range(CAPACITY + 10):
        table.set(key, key, 0)
    assert len(table) == CAPACITY
    assert table.get(9, 0) is None and table.get(10, 0) == 10


# In a complete gateway. Both engines die of an id outside their vocabulary, one breaking off its replies,
# the other with an error of its own first.


@dataclass
class Stage:
    """A gateway in front of engines."""

    kind: str
    gateway: Rig
    sims: list[SimServer]

    async def send(self, attempt: int, padding: bytes = b"", **members: Any) -> httpx.Response:
        """The same request, each time under another id."""
        body = {**body_of(self.kind), ID[self.kind]: f"try-{attempt}", **members}
        headers = {**JSON, "x-request-id": f"call-{attempt}"}
        sent = json.dumps(body).encode() + padding
        return await self.gateway.client.post(KINDS[self.kind], content=sent, headers=headers)

    async def deadly(self, attempt: int, *, stream: bool = False) -> httpx.Response:
        return await self.send(attempt, stream=stream, padding=b"", **{PROMPT[self.kind]: [1, 40_000]})

    async def dead(self, count: int) -> None:
        workers = self.gateway.app.fleet.workers
        await until(lambda: sum(worker.state == "dead" for worker in workers) == count)


@asynccontextmanager
async def stage(kind: str, count: int = 3, **settings: Any) -> AsyncIterator[Stage]:
    config = SimConfig(skip_tokenizer=kind == "vllm", tokens=4)
    async with AsyncExitStack() as stack:
        sims = [await stack.enter_async_context(SimServer(kind, config)) for _ in range(count)]
        yield Stage(kind, await stack.enter_async_context(rig(*(sim.url for sim in sims), **settings)), sims)


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_deadly_request_kills_two_workers_and_no_third(kind: str, stream: bool) -> None:
    async with stage(kind) as on:
        for deaths in (1, 2):
            reply = await on.deadly(deaths, stream=stream)
            assert reply.status_code in ((200,) if stream else (500, 502))
            await on.dead(deaths)
            ran = [arrival for sim in on.sims for arrival in sim.log if b"40000" in arrival.body]
            assert len(ran) == deaths
        for attempt in (3, 4):
            reply = await on.deadly(attempt, stream=stream)
            message = reply.json()["error"]["message"]
            assert reply.status_code == 422
            assert "within 60 s" in message and "poison_window, set by --poison-window-seconds" in message
        await on.dead(2)
        assert (await on.send(5)).status_code == 200
        text = (await on.gateway.client.get("/metrics")).text
        assert f'requests_refused_total{{format="{kind}",rule="poison_window"}} 2' in text


async def test_window_of_zero_lets_a_deadly_request_go_on() -> None:
    async with stage("sglang", poison_window_seconds=0) as on:
        for deaths in (1, 2, 3):
            assert (await on.deadly(deaths)).status_code == 502
            await on.dead(deaths)
        assert (await on.deadly(4)).status_code == 503


@pytest.mark.parametrize("kind", KINDS)
async def test_one_worker_that_is_restarted_dies_of_a_request_twice_at_most(kind: str) -> None:
    async with stage(kind, 1) as on:
        [sim] = on.sims
        for attempt in (1, 2):
            await on.deadly(attempt)
            await on.dead(1)
            await sim.stop()
            await sim.start()
            await on.dead(0)
        assert (await on.deadly(3)).status_code == 422
        assert not generates(sim)


@pytest.mark.parametrize("size", [100_000, 1_500_000])
@pytest.mark.parametrize("kind", KINDS)
async def test_body_that_was_let_go_of_while_it_ran_is_known_again(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BodyRelease.__init__, "__defaults__", (0.05,))
    async with stage(kind) as on:
        for sim in on.sims:  # now that their probes are over
            sim.behave(Pace(prefill_base=60.0))
        for deaths in (1, 2):
            sent = asyncio.ensure_future(on.send(deaths, b" " * size))
            await arrived(1, *on.sims)
            [live] = on.gateway.app.lifecycle._open
            assert isinstance(live, LiveExchange)
            await until(lambda live=live: not live.body)  # type: ignore[misc]
            assert not live.request.body
            [holder] = [sim for sim in on.sims if generates(sim)]
            on.sims.remove(holder)
            await holder.kill()
            assert (await sent).status_code == 502
            await on.dead(deaths)
        assert (await on.send(3, b" " * size)).status_code == 422
        assert not generates(*on.sims)


class Hashing:
    """Stands for ``blake2b``: counts the bytes hashed, in all and at most in one iteration of the loop."""

    def __init__(self) -> None:
        self.total = self.largest = self._now = 0

    def __call__(self, data: bytes = b"", *, digest_size: int) -> Hashing:
        self._hasher = blake2b(digest_size=digest_size)
        self.update(data)
        return self

    def update(self, data: Any) -> None:
        if not self._now:
            asyncio.get_running_loop().call_soon(self._next_iteration)
        self._now += len(data)
        self.total += len(data)
        self.largest = max(self.largest, self._now)
        self._hasher.update(data)

    def _next_iteration(self) -> None:
        self._now = 0

    def digest(self) -> bytes:
        return self._hasher.digest()


@pytest.mark.parametrize("armed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_long_body_is_hashed_in_steps(kind: str, armed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a reply to it broke off, and, while the guard is armed, before it is dispatched."""
    hashing = Hashing()
    async with stage(kind) as on:
        for deaths in (1, 2) if armed else ():
            await on.deadly(deaths)
            await on.dead(deaths)
        monkeypatch.setattr(query_of_death, "blake2b", hashing)
        for sim in on.sims:
            sim.behave(Pace(prefill_base=60.0) if armed else Pace(cut_after=0, cut="rst"))
        sent = asyncio.ensure_future(on.send(3, b" " * 4 * STEP))
        await until(lambda: hashing.total >= 4 * STEP)
        assert hashing.largest <= STEP
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
