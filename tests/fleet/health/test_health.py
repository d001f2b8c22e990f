"""Probing: what stands behind a URL, and whether it still does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.cards.values import CardValues
from gateway.fleet.health import health as module
from gateway.fleet.health.health import Health
from gateway.fleet.registry import Fleet
from gateway.fleet.replies import ReplyOutcome
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo
from tests.fleet.engine import Answers, EchoFormat, Engine, engine
from tests.fleet.support import fleet_with, worker_at
from tests.support.gateway import until
from tests.support.processes import free_port

ECHO: Any = EchoFormat()
OTHER: Any = EchoFormat("other")
READY, BUSY, SUSPECT = WorkerState.READY, WorkerState.BUSY, WorkerState.SUSPECT
DEAD, JOINING = WorkerState.DEAD, WorkerState.JOINING
#: No probe falls due by itself.
NEVER = 1e6

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def watched(
    *workers: Worker,
    interval: float = 0.02,
    recovery: float = 0.01,
    formats: tuple[Any, ...] = (ECHO,),
    **options: Any,
) -> AsyncIterator[tuple[Health, Fleet]]:
    fleet = fleet_with()
    health = Health(fleet, formats, interval, recovery=recovery, **options)
    for worker in workers:
        fleet.add(worker)
        health.watch(worker)
    try:
        yield health, fleet
    finally:
        await health.stop()
        fleet.close()


@asynccontextmanager
async def probed(
    answers: Answers | None = None, *, declared: str | None = None, **options: Any
) -> AsyncIterator[tuple[Engine, Worker, Health, Fleet]]:
    """Watch one worker, which gives these ``answers``, {}: none at all."""
    async with engine(answers) as server:
        worker = server.worker(declared_format=declared)
        async with watched(worker, **options) as (health, fleet):
            yield server, worker, health, fleet


@asynccontextmanager
async def ready(
    answers: Answers | None = None, **options: Any
) -> AsyncIterator[tuple[Engine, Worker, Health, Fleet]]:
    """Watch one worker, which is ready."""
    async with probed(answers, **options) as watching:
        await becomes(watching[1], READY)
        yield watching


def nobody() -> Worker:
    """A worker at whose URL nothing listens."""
    return worker_at(f"http://127.0.0.1:{free_port()}")


async def becomes(worker: Worker, state: WorkerState) -> None:
    await until(lambda: worker.state is state)


async def test_worker_that_answers_its_probes_is_ready() -> None:
    async with ready(interval=NEVER, formats=(ECHO, OTHER)) as (server, worker, _, fleet):
        assert {name: info.models for name, info in worker.infos.items()} == {"echo": ("m",)}
        assert worker.reason == ""
        assert fleet.lease("echo-generate", None) is worker
        assert (server.count("/info"), server.count("/models")) == (1, 1)


@pytest.mark.parametrize(
    ("answers", "only", "reason"),
    [
        ({"/info": (403, b"echo")}, None, "status 403"),
        ({"/info": (200, b"<html>")}, None, "it does not speak echo or other"),
        ({"/info": (200, b"echo m")}, "other", "it does not speak other"),
        ({"/info": (200, b"echo m")}, "ecko", "no format 'ecko'"),
        ({}, None, "it gave no answer to any probe"),
        (None, None, "nothing listens"),
    ],
)
async def test_worker_that_cannot_serve_is_joining_and_says_why(
    answers: Answers | None, only: str | None, reason: str
) -> None:
    options: Any = {"formats": (ECHO, OTHER), "answer_timeout": 0.02}
    async with probed(answers, declared=only, **options) as (server, worker, _, _):
        if answers is None:
            server.stop()
        await until(lambda: reason in worker.reason)
        await asyncio.sleep(0.1)
        assert worker.state is JOINING and reason in worker.reason
        if answers and only is None:
            server.answers["/info"] = (200, b"echo m")
            await becomes(worker, READY)
            assert worker.reason == ""


def broke(health: Health, worker: Worker) -> None:
    """Report that a reply of ``worker`` broke off."""
    health.outliers.observe(worker, worker.incarnation, ReplyOutcome.BROKEN, 0.0)


@pytest.mark.parametrize("interval", [0.02, NEVER])
async def test_refused_probe_is_death_at_once_and_the_worker_is_back_within_a_second(interval: float) -> None:
    """However rarely ready workers are probed. Its load is forgotten."""
    assert module.RECOVERY_INTERVAL < 1
    async with ready({"/load": (200, b"7")}, interval=interval) as (server, worker, health, _):
        for _ in range(2):
            await until(lambda: worker.vitals.foreign_requests == 7)
            server.stop()
            broke(health, worker)
            await becomes(worker, DEAD)
            assert "nothing listens" in worker.reason
            assert (worker.vitals.foreign_requests, worker.vitals.reported) == (0, None)
            await server.start()
            await becomes(worker, READY)


@pytest.mark.parametrize("answer", [(503, b""), (500, b""), None], ids=["503", "500", "broken"])
async def test_two_failed_probes_in_a_row_are_death(answer: tuple[int, bytes] | None) -> None:
    """One makes it suspect, and a good one between them clears it, as does a missing health route."""
    async with ready(interval=NEVER, recovery=0.2) as (server, worker, health, _):

        async def probe(answered: tuple[int, bytes] | None) -> None:
            server.answers["/health"] = answered
            health.watch(worker)
            await server.asked("/health")

        for good in ((200, b""), (404, b"")):
            await probe(answer)
            await until(lambda: worker.vitals.failed_probes == 1)
            assert worker.state is SUSPECT
            await probe(good)
            await becomes(worker, READY)
            assert (worker.vitals.failed_probes, worker.reason) == (0, "")
        for state in (SUSPECT, DEAD):
            await probe(answer)
            await becomes(worker, state)
        assert worker.reason == (
            "its health probe failed" if answer is None else f"its health probe was answered with {answer[0]}"
        )


async def test_missing_answer_to_a_description_makes_a_worker_suspect() -> None:
    async with ready(interval=0.001) as (server, worker, _, _):
        server.answers["/info"] = None
        await becomes(worker, SUSPECT)
        assert worker.infos
        server.answers["/info"] = (200, b"echo n")
        await becomes(worker, READY)
        assert worker.vitals.failed_probes == 0
        await until(lambda: worker.infos["echo"].models == ("n",))
        assert server.count("/health") > server.count("/info")


class Sized(EchoFormat):
    """Its engine answers ``/models`` with the length of its context, ``/more`` with a number of requests."""

    details = (ProbeRequest("GET", "/more"),)

    def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
        length, most = (int(replies[path].body) if path in replies else None for path in ("/models", "/more"))
        found, card = super().identify(replies), CardValues(context_length=length, max_num_seqs=most)
        if found is None or length is None:
            return None if found is None else replace(found, models=(), card=card)
        cards = {"long": CardValues(context_length=2 * length)}
        listed = replace(found, models=("n", "long"), model_entries={"n": {}}, model_cards=cards)
        return replace(listed, model_path="/n", adapters=("long",), card=card)


async def test_answer_that_is_missing_takes_nothing_off_what_is_known_of_a_worker_that_serves() -> None:
    answers: Answers = {"/models": (200, b"64"), "/more": (200, b"8")}
    async with ready(answers, interval=0.001, formats=(Sized(),)) as (server, worker, _, _):
        assert (worker.card.values.context_length, worker.card.values.max_num_seqs) == (64, 8)
        version = worker.card.version
        server.answers["/models"] = server.answers["/more"] = None
        for path in ("/more", "/models", "/more"):
            await server.asked(path)
        assert worker.card.version == version
        assert worker.card.of_model("long").values.context_length == 128
        info = worker.infos["echo"]
        assert (info.models, info.adapters, info.model_path) == (("n", "long"), ("long",), "/n")
        server.answers |= {"/models": (200, b"32"), "/more": (200, b"8")}
        await until(lambda: worker.card.values.context_length == 32)


async def test_refused_request_is_death_at_once_and_a_broken_reply_is_not() -> None:
    """Both are probed soon, even while replies arrive."""
    async with ready(interval=NEVER) as (server, worker, health, fleet):
        worker.vitals.last_reply_at = float("inf")
        broke(health, worker)
        assert worker.state is SUSPECT
        assert list(fleet.usable("echo-generate")) == [worker]
        await server.asked("/health")
        await becomes(worker, READY)
        health.report_refused(worker)
        assert worker.state is DEAD
        assert not fleet.usable("echo-generate")
        await becomes(worker, READY)


@pytest.mark.parametrize("state", [JOINING, DEAD, WorkerState.DRAINING])
async def test_late_reports_change_no_worker_that_does_not_serve(state: WorkerState) -> None:
    worker = nobody()
    worker.state, worker.reason = state, "before"
    async with watched() as (health, _):
        health.report_busy(worker, 503, None)
        if state is not WorkerState.DRAINING:
            health.report_refused(worker)
        assert (worker.state, worker.reason) == (state, "before")


async def test_worker_is_asked_at_each_interval_whatever_its_replies_are() -> None:
    async with ready(interval=0.002) as (server, worker, _, _):
        worker.vitals.last_reply_at = float("inf")
        asked, described = server.count("/health"), server.count("/info")
        await until(lambda: server.count("/info") >= described + 3)
        assert server.count("/health") - asked >= 2 * module.DESCRIBE_EVERY


async def test_bad_answer_makes_a_worker_suspect_although_its_replies_arrive_but_not_dead() -> None:
    async with ready(interval=0.1, recovery=0.1) as (server, worker, _, _):
        worker.vitals.last_reply_at = float("inf")
        server.answers["/health"] = (500, b"")
        await becomes(worker, SUSPECT)
        asked = server.count("/health")
        await until(lambda: server.count("/health") > asked + 5)
        assert worker.state is SUSPECT
        worker.vitals.last_reply_at = 0.0
        await becomes(worker, DEAD)


async def test_worker_whose_tokens_arrive_although_it_takes_no_requests_is_ending() -> None:
    """It gets nothing new. One that is paused sends no tokens; it is busy."""
    async with ready(interval=0.1, recovery=0.1) as (server, worker, _, fleet):
        server.answers["/health"] = (429, b"")
        await becomes(worker, BUSY)
        await asyncio.sleep(10)
        assert worker.state is BUSY
        worker.vitals.last_reply_at = time.monotonic()
        await becomes(worker, JOINING)
        assert worker.reason == "it takes no new requests: it is ending"
        assert not fleet.usable("echo-generate")
        await asyncio.sleep(10)
        assert worker.state is JOINING
        server.answers["/health"] = (200, b"")
        await becomes(worker, READY)


async def test_worker_that_hangs_delays_no_probe_of_others() -> None:
    async with engine({}) as slow, engine() as quick:
        hanging, worker = slow.worker(), quick.worker()
        async with watched(hanging, worker, answer_timeout=NEVER):
            await until(lambda: quick.count("/health") > 5)
            assert worker.state is READY
            assert slow.count("/info") == slow.at_once == 1
        await until(lambda: slow.at_once == 0)


async def test_one_probe_at_a_time_runs_on_a_worker() -> None:
    async with ready(interval=0.001, recovery=0.001) as (server, worker, health, _):
        server.most_at_once, before = 0, len(server.requests)
        async with asyncio.timeout(5):
            while len(server.requests) < before + 30:
                health.watch(worker)
                await asyncio.sleep(0.0005)
        assert server.most_at_once <= len(ECHO.probes)


async def test_worker_is_not_probed_as_often_as_failures_are_reported() -> None:
    async with ready(interval=NEVER) as (server, worker, health, _):
        start, before = time.monotonic(), server.count("/health")
        while server.count("/health") < before + 3:
            broke(health, worker)
            await asyncio.sleep(0.001)
        assert time.monotonic() - start >= 2 * module.MIN_INTERVAL


async def test_forgotten_worker_is_not_probed() -> None:
    async with ready(interval=0.001, answer_timeout=NEVER) as (server, worker, health, fleet):
        server.answers.clear()  # the next probe hangs
        await until(lambda: server.at_once > 0)
        fleet.drain(worker)
        for _ in range(2):
            health.forget(worker)
        await until(lambda: server.at_once == 0)
        asked = len(server.requests)
        broke(health, worker)
        await asyncio.sleep(0.02)
        assert len(server.requests) == asked
        assert worker.state is WorkerState.GONE


async def test_format_that_raises_on_an_answer_is_logged_and_counts_as_a_failed_probe(
    caplog: pytest.LogCaptureFixture,
) -> None:
    format, identify = EchoFormat(), ECHO.identify
    format.identify = lambda replies: dict[str, Any]()["model"]  # type: ignore[method-assign]
    async with probed(formats=(format,)) as (_, worker, _, _):
        await until(lambda: worker.reason == "its answers could not be read")
        assert "KeyError" in caplog.text
        format.identify = identify  # type: ignore[method-assign]
        await becomes(worker, READY)


async def test_worker_that_answered_429_is_busy_for_a_while() -> None:
    async with ready(interval=NEVER, recovery=0.01) as (server, worker, health, fleet):
        health.report_busy(worker, 429, None)
        assert (worker.state, worker.reason) == (BUSY, "it answered 429")
        assert list(fleet.usable("echo-generate")) == [worker]
        left = worker.vitals.busy_until - time.monotonic()
        assert 0.9 < left <= module.BUSY_SECONDS
        await server.asked("/health")
        assert worker.state is BUSY
        worker.vitals.busy_until = time.monotonic()
        health.watch(worker)
        await becomes(worker, READY)


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        (b"7", 7),
        (b"0", module.BUSY_SECONDS),
        (b"86400", module.BUSY_LIMIT),
        (b"Wed, 21 Oct", 1),
        (b"Wed, 21 Oct 2015 07:28:00 GMT", module.BUSY_SECONDS),
        (b"Fri, 01 Jan 2100 00:00:00 GMT", module.BUSY_LIMIT),
        (b"\xff", 1),
        (b"9" * 400, module.BUSY_LIMIT),
        (b"Mon, 01 Jan 2020 00:00:00 +99999999999999999999", 1),
        (b"Mon, 01 Jan 99999999999999999999 00:00:00 GMT", 1),
        (b"Mon, 99999999999 Jan 2020 00:00:00 GMT", 1),
    ],
)
async def test_retry_after_says_within_bounds_how_long_a_worker_is_busy(
    retry_after: bytes, seconds: float
) -> None:
    async with ready(interval=NEVER) as (_, worker, health, _):
        health.report_busy(worker, 503, retry_after)
        assert worker.vitals.busy_until - time.monotonic() == pytest.approx(seconds)


@pytest.mark.parametrize("doubt", ["reply", "probe"])
async def test_doubt_about_a_busy_worker_does_not_end_the_time_that_it_asked_for(doubt: str) -> None:
    """It is another process once it was dead, and then serves at once."""
    async with ready(interval=NEVER, recovery=0.01) as (server, worker, health, _):
        health.report_busy(worker, 503, b"20")
        if doubt == "reply":
            broke(health, worker)
        else:
            server.answers["/health"] = (500, b"")
            health.watch(worker)
        await becomes(worker, SUSPECT)
        server.answers["/health"] = (200, b"")
        asked = server.count("/health")
        await until(lambda: server.count("/health") > asked + 2)
        assert worker.state is SUSPECT
        health.report_refused(worker)
        await becomes(worker, READY)


async def test_pause_of_a_full_worker_doubles_until_it_has_served_a_request() -> None:
    async with ready(interval=NEVER) as (_, worker, health, _):

        async def busy_for() -> float:
            health.report_busy(worker, 503, None)
            seconds = worker.vitals.busy_until - time.monotonic()
            await becomes(worker, READY)
            return seconds

        assert [await busy_for() for _ in range(3)] == pytest.approx([1, 2, 4])
        health.outliers.observe(worker, worker.incarnation, ReplyOutcome.GOOD, 0.1)
        assert await busy_for() == pytest.approx(1)


def test_date_of_a_retry_after_is_so_many_seconds_away() -> None:
    now = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
    assert module.seconds_of(b"Mon, 30 Nov 2026 12:00:20 GMT", now) == 20
    assert module.seconds_of(b"Monday, 30-Nov-26 12:00:20 GMT", now) == 20


async def test_worker_that_reports_it_takes_no_requests_is_busy_and_never_dead() -> None:
    async with ready(interval=0.002) as (server, worker, _, _):
        server.answers["/health"] = (429, b"")
        await becomes(worker, BUSY)
        asked = server.count("/health")
        await until(lambda: server.count("/health") > asked + 5)
        assert (worker.state, worker.vitals.failed_probes) == (BUSY, 0)
        server.answers["/health"] = (200, b"")
        await becomes(worker, READY)


async def test_worker_that_reports_it_is_paused_is_busy_although_its_health_is_good() -> None:
    """Until it reports otherwise, for which it is asked with each probe."""

    class Pausable(EchoFormat):
        probes = (*EchoFormat.probes, ProbeRequest("GET", "/paused"))

        def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
            info = super().identify(replies)
            return info and replace(info, paused=replies["/paused"].body == b"yes")

    async with probed({"/paused": (200, b"yes")}, formats=(Pausable(),)) as (server, worker, _, fleet):
        await becomes(worker, BUSY)
        assert fleet.lease("echo-generate", None) is worker
        server.answers["/paused"] = (200, b"no")
        await becomes(worker, READY)


async def test_unreachable_worker_is_distinguished_from_one_that_does_not_answer() -> None:
    """The next one to answer is another process only in the first case."""
    unreachable: list[Worker] = []
    async with ready(answer_timeout=0.05, on_unreachable=unreachable.append) as (server, worker, _, _):
        server.answers.clear()
        await becomes(worker, DEAD)
        assert not unreachable
        server.stop()
        await until(lambda: bool(unreachable))
        assert set(unreachable) == {worker}


async def test_worker_that_serves_is_not_probed_when_probes_are_off() -> None:
    async with ready(interval=0, recovery=0.01) as (server, worker, health, _):
        await until(lambda: server.at_once == 0)
        asked = len(server.requests)
        await asyncio.sleep(0.05)
        assert len(server.requests) == asked
        broke(health, worker)
        assert worker.state is SUSPECT
        await becomes(worker, READY)
        server.stop()
        health.report_refused(worker)
        assert worker.state is DEAD
        await server.start()
        await becomes(worker, READY)


async def test_probe_that_fails_while_tokens_arrive_does_not_count() -> None:
    async with ready(interval=NEVER, answer_timeout=0.02) as (server, worker, health, _):
        del server.answers["/health"]
        for _ in range(module.MAX_FAILED_PROBES + 1):
            asking = asyncio.ensure_future(server.asked("/health"))
            health.watch(worker)
            await asking
            await asyncio.sleep(0.001)
            worker.vitals.last_reply_at = time.monotonic()
            await until(lambda: server.at_once == 0)
        assert (worker.state, worker.vitals.failed_probes) == (READY, 0)


async def test_load_of_others_is_the_reported_load_beyond_the_own() -> None:
    async with ready({"/load": (200, b"7")}, interval=0.002) as (server, worker, _, fleet):
        await until(lambda: worker.vitals.foreign_requests == 7)
        for _ in range(3):
            fleet.lease("echo-generate", None)
        await until(lambda: worker.vitals.foreign_requests == 4)
        assert (worker.in_flight, worker.load) == (3, 7)
        server.answers["/load"] = (200, b"1")
        await until(lambda: worker.vitals.foreign_requests == 0)
        assert worker.load == 3


async def test_question_for_the_load_that_is_not_answered_is_not_repeated() -> None:
    async with ready(interval=0.001) as (server, worker, _, _):
        await until(lambda: server.count("/health") > 5)
        assert (server.count("/load"), worker.vitals.reported) == (1, None)


@pytest.mark.parametrize("first", [True, False])
async def test_load_that_is_reported_once_is_asked_for_by_one_process(first: bool) -> None:
    format: Any = EchoFormat()
    format.loads = (ProbeRequest("GET", "/load", once=True),)
    async with ready({"/load": (200, b"7")}, interval=0.001, formats=(format,), first=first) as found:
        server, worker, _, _ = found
        await until(lambda: server.count("/health") > 5)
        assert (server.count("/load") > 0) is first
        assert (worker.vitals.reported is not None) is first


async def test_worker_that_does_not_serve_for_long_is_probed_less_often() -> None:
    worker = nobody()
    async with watched(recovery=0.01) as (health, _):
        state = module._Watch()
        assert health._pause(worker, state) == 0.01
        state.away_since = time.monotonic() - 10
        assert 0.9 < (health._pause(worker, state) or 0) < 1.2
        state.away_since = time.monotonic() - 10_000
        assert health._pause(worker, state) == module.LONGEST_INTERVAL


async def test_worker_that_left_is_asked_once_whether_it_listens() -> None:
    unreachable: list[Worker] = []
    async with engine() as server, watched(on_unreachable=unreachable.append) as (health, _):
        worker = server.worker()
        health.check_reachable(worker)
        await server.asked("/health")
        await asyncio.sleep(0.02)
        assert not unreachable and server.count("/health") == 1
        server.stop()
        health.check_reachable(worker)
        await until(lambda: unreachable == [worker])
