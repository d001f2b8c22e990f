"""A body under which two workers died is given to no third."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import httpx
import pytest

from gateway.errors import PoisonedRequest
from gateway.proxy.body_release import BodyRelease
from gateway.proxy.live import LiveExchange
from gateway.proxy.query_of_death import (
    CAPACITY,
    GRACE,
    STEP,
    QueryOfDeathGuard,
    RecentTable,
    digest,
    digest_in_steps,
)
from gateway.sim import Pace, Reply, SimConfig, SimServer
from tests.support.gateway import Rig, arrived, generates, rig, until
from tests.support.generate import JSON, KINDS, PROMPT, body_of

BODY = digest(b"deadly")
OTHER = digest(b"harmless")


def refused(guard: QueryOfDeathGuard, now: float, body: bytes = BODY) -> bool:
    try:
        guard.check(body, now)
    except PoisonedRequest:
        return True
    return False


def killed(guard: QueryOfDeathGuard, now: float, body: bytes = BODY) -> object:
    """One worker dies under ``body`` at ``now``; its incarnation."""
    incarnation = object()
    guard.reply_broke(body, incarnation, now)
    guard.worker_died(incarnation, now)
    return incarnation


def test_body_under_which_one_worker_died_is_taken() -> None:
    guard = QueryOfDeathGuard(60)
    killed(guard, 0)
    assert not guard.armed
    assert not refused(guard, 1)


def test_body_under_which_two_workers_died_is_refused_and_no_other() -> None:
    guard = QueryOfDeathGuard(60)
    killed(guard, 0)
    killed(guard, 60)
    assert guard.armed
    assert refused(guard, 61)
    assert not refused(guard, 61, OTHER)


def test_refusal_names_the_rule_and_the_setting() -> None:
    guard = QueryOfDeathGuard(60)
    killed(guard, 0)
    killed(guard, 1)
    with pytest.raises(
        PoisonedRequest, match="within 60 s.*poison_window.*--poison-window-seconds"
    ) as caught:
        guard.check(BODY, 2)
    assert caught.value.rule == "poison_window"


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
            guard.worker_died(incarnation, start + apart)
        else:
            guard.worker_died(incarnation, start)
            guard.reply_broke(BODY, incarnation, start + apart)
    assert refused(guard, 45) is counts


def test_reply_that_broke_on_a_worker_that_lives_is_no_death() -> None:
    guard = QueryOfDeathGuard(60)
    for _ in range(10):
        guard.reply_broke(BODY, object(), 0)
    assert not refused(guard, 1)


def test_worker_that_dies_once_counts_once_however_often_the_body_ran_there() -> None:
    """A group of samples of one prompt is sent as many requests with one body."""
    guard = QueryOfDeathGuard(60)
    incarnation = object()
    for _ in range(4):
        guard.reply_broke(BODY, incarnation, 0)
    guard.worker_died(incarnation, 0)
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
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as done:
            assert done.value == digest(body, cuts) == digest(bytes(left))
            break
    assert size // STEP <= count <= size // STEP + 1 + len(cuts)


def test_window_of_zero_is_off() -> None:
    assert not QueryOfDeathGuard(0).on
    assert QueryOfDeathGuard(0.5).on


def test_table_forgets_the_oldest_beyond_its_capacity() -> None:
    table: RecentTable[int, int] = RecentTable(60)
    for key in range(CAPACITY + 10):
        table.set(key, key, 0)
    assert len(table) == CAPACITY
    assert table.get(9, 0) is None and table.get(10, 0) == 10


def test_table_keeps_what_is_put_again() -> None:
    table: RecentTable[str, int] = RecentTable(10)
    table.set("a", 1, 0)
    table.set("b", 1, 1)
    table.set("a", 2, 5)
    assert table.get("a", 15) == 2
    assert len(table) == 1
    assert table.keys(16) == ()


# In a complete gateway. Both engines die of an id outside their vocabulary, one breaking off its replies,
# the other with an error of its own first.


def _config(kind: str) -> SimConfig:
    return SimConfig(skip_tokenizer=kind == "vllm", tokens=4)


def _deadly(kind: str, attempt: int, *, stream: bool = False) -> dict[str, object]:
    """The same request, each time under another id."""
    named = {"sglang": "rid", "vllm": "request_id"}[kind]
    return {**body_of(kind, stream=stream), PROMPT[kind]: [1, 40_000], named: f"try-{attempt}"}


async def _send(gateway: Rig, kind: str, attempt: int, *, stream: bool = False) -> httpx.Response:
    header = {"x-request-id": f"call-{attempt}"}
    return await gateway.client.post(KINDS[kind], json=_deadly(kind, attempt, stream=stream), headers=header)


def _dead(gateway: Rig) -> int:
    return sum(worker.state == "dead" for worker in gateway.app.fleet.workers)


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_deadly_request_kills_two_workers_and_no_third(kind: str, stream: bool) -> None:
    async with AsyncExitStack() as stack:
        sims = [await stack.enter_async_context(SimServer(kind, _config(kind))) for _ in range(3)]
        gateway = await stack.enter_async_context(rig(*(sim.url for sim in sims)))
        for deaths in (1, 2):
            reply = await _send(gateway, kind, deaths, stream=stream)
            assert reply.status_code in ((200,) if stream else (500, 502))
            await until(lambda: _dead(gateway) == deaths)  # noqa: B023 - awaited in its round
            assert len([arrival for sim in sims for arrival in sim.log if b"40000" in arrival.body]) == deaths
        for attempt in (3, 4):
            reply = await _send(gateway, kind, attempt, stream=stream)
            assert reply.status_code == 422
            assert "--poison-window-seconds" in reply.json()["error"]["message"]
        assert _dead(gateway) == 2
        good = await gateway.client.post(KINDS[kind], json=body_of(kind))
        assert good.status_code == 200
        text = (await gateway.client.get("/metrics")).text
        assert f'requests_refused_total{{format="{kind}",rule="poison_window"}} 2' in text


async def test_window_of_zero_lets_a_deadly_request_go_on() -> None:
    async with AsyncExitStack() as stack:
        sims = [await stack.enter_async_context(SimServer("sglang", SimConfig())) for _ in range(3)]
        gateway = await stack.enter_async_context(rig(*(s.url for s in sims), poison_window_seconds=0))
        for deaths in (1, 2, 3):
            assert (await _send(gateway, "sglang", deaths)).status_code == 502
            await until(lambda: _dead(gateway) == deaths)  # noqa: B023 - awaited in its round
        assert (await _send(gateway, "sglang", 4)).status_code == 503


@pytest.mark.parametrize("kind", KINDS)
async def test_one_worker_that_is_restarted_dies_of_a_request_twice_at_most(kind: str) -> None:
    async with SimServer(kind, _config(kind)) as sim, rig(sim.url) as gateway:
        for attempt in (1, 2):
            await _send(gateway, kind, attempt)
            await until(lambda: _dead(gateway) == 1)
            await sim.stop()
            await sim.start()
            await until(lambda: _dead(gateway) == 0)
        assert (await _send(gateway, kind, 3)).status_code == 422
        assert not generates(sim)


@pytest.mark.parametrize("size", [100_000, 1_500_000])
@pytest.mark.parametrize("kind", KINDS)
async def test_body_that_was_let_go_of_while_it_ran_is_known_again(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its id: only its digest is kept."""
    monkeypatch.setattr(BodyRelease.__init__, "__defaults__", (0.05,))
    async with AsyncExitStack() as stack:
        sims = [await stack.enter_async_context(SimServer(kind, SimConfig())) for _ in range(3)]
        gateway = await stack.enter_async_context(rig(*(sim.url for sim in sims)))
        for sim in sims:  # now that their probes are over
            sim.behave(Pace(prefill_base=60.0))

        def send(attempt: int) -> asyncio.Task[httpx.Response]:
            named = {"sglang": "rid", "vllm": "request_id"}[kind]
            body = json.dumps({**body_of(kind), named: f"try-{attempt}"}).encode() + b" " * size
            return asyncio.ensure_future(gateway.client.post(KINDS[kind], content=body, headers=JSON))

        for deaths in (1, 2):
            sent = send(deaths)
            await arrived(1, *sims)
            [live] = gateway.app.lifecycle._open
            assert isinstance(live, LiveExchange)
            await until(lambda live=live: not live.body)  # type: ignore[misc]
            assert not live.request.body
            [holder] = [sim for sim in sims if generates(sim)]
            sims.remove(holder)
            await holder.kill()
            assert (await sent).status_code == 502
            await until(lambda deaths=deaths: _dead(gateway) == deaths)  # type: ignore[misc]
        assert (await send(3)).status_code == 422
        assert not generates(*sims)


async def test_request_in_flight_on_a_worker_that_dies_is_not_sent_to_another() -> None:
    """Its client gets a 502 and decides whether to send it again."""
    config = SimConfig(token_delay=1.0)
    async with SimServer("sglang", config) as one, SimServer("sglang", config) as two:
        async with rig(one.url, two.url) as gateway:
            sent = asyncio.ensure_future(gateway.client.post("/generate", json=body_of("sglang", 100)))
            await arrived(1, one, two)
            holder = one if generates(one) else two
            log = holder.request_log.generates
            await holder.kill()
            assert (await sent).status_code == 502
            await until(lambda: _dead(gateway) == 1)
            assert len([arrival for arrival in log if arrival.body != b"{}"]) == 1
            other = two if holder is one else one
            assert not generates(other)


async def test_replies_that_break_while_their_workers_live_on_poison_nothing() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Pace(cut_after=1, cut="rst"), Reply(status=500, body=b"oops", content_type="text/plain"))
        body = body_of("sglang", stream=True)
        for _ in range(3):
            assert (await gateway.client.post("/generate", json=body)).status_code in (200, 500)
        assert len(generates(sim)) == 3
        assert _dead(gateway) == 0
