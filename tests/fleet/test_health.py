"""Probing: what stands behind a URL, and whether it still does."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest
import trustme

from gateway.fleet import health as module
from gateway.fleet.health import Health, Unreachable, ask, describe, probe_client
from gateway.fleet.registry import Fleet
from gateway.fleet.worker import Address, Worker, WorkerState
from gateway.formats.base import ProbeReply, ProbeRequest
from gateway.routing.policy import LeastInFlight
from tests.fleet.engine import EchoFormat, Engine, engine, free_port
from tests.support import until

ECHO: Any = EchoFormat()
OTHER: Any = EchoFormat("other")
READY, DEAD, JOINING, UNUSABLE = (
    WorkerState.READY,
    WorkerState.DEAD,
    WorkerState.JOINING,
    WorkerState.UNUSABLE,
)
#: No probe falls due by itself.
NEVER = 1000.0


@asynccontextmanager
async def watched(
    *workers: Worker,
    interval: float = 0.02,
    recovery: float = 0.01,
    patience: float = 5.0,
    formats: tuple[Any, ...] = (ECHO,),
) -> AsyncIterator[tuple[Health, Fleet]]:
    fleet = Fleet(LeastInFlight(Random(0)), 5.0)
    health = Health(fleet, formats, probe_client(timeout=patience), interval, recovery=recovery)
    for worker in workers:
        fleet.add(worker)
        health.watch(worker)
    try:
        yield health, fleet
    finally:
        await health.stop()
        fleet.close()


async def becomes(worker: Worker, state: WorkerState) -> None:
    await until(lambda: worker.state is state)


# -- what is found


async def test_worker_is_identified() -> None:
    """A worker that answers its probes is ready, with what it told of itself."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker) as (_, fleet):
            await becomes(worker, READY)
            assert worker.infos["echo"].models == ("m",)
            assert worker.reason == ""
            assert fleet.lease("echo-generate", None) is worker


async def test_worker_that_speaks_several_formats() -> None:
    """Every format is asked, but each question only once."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, interval=NEVER, formats=(ECHO, OTHER)):
            await becomes(worker, READY)
            assert set(worker.infos) == {"echo"}
            assert (server.count("/info"), server.count("/models")) == (1, 1)


async def test_worker_that_cannot_serve() -> None:
    """A worker that speaks the dialect but cannot serve is unusable, and says why."""
    async with engine() as server:
        server.answers["/info"] = (403, b"echo")
        worker = server.worker()
        async with watched(worker):
            await becomes(worker, UNUSABLE)
            assert worker.reason == "status 403"
            server.answers["/info"] = (200, b"echo m")
            await becomes(worker, READY)
            assert worker.reason == ""


@pytest.mark.parametrize(
    ("only", "said"), [(None, "it does not speak echo or other"), ("other", "it does not speak other")]
)
async def test_worker_of_another_kind(only: str | None, said: str) -> None:
    """A server that is no engine we know, or not the one it was declared to be, is unusable."""
    async with engine() as server:
        if only is None:
            server.answers["/info"] = (200, b"<html>")
        worker = server.worker(only=only)
        async with watched(worker, formats=(ECHO, OTHER)):
            await becomes(worker, UNUSABLE)
            assert worker.reason == said


async def test_worker_that_never_answered() -> None:
    """A worker that was never there is joining for as long as that lasts, and says what is wrong."""
    worker = Worker(Address.parse(f"http://127.0.0.1:{free_port()}"))
    async with watched(worker):
        await until(lambda: "nobody listens" in worker.reason)
        await asyncio.sleep(0.03)
        assert worker.state is JOINING


async def test_worker_that_hangs_from_the_start() -> None:
    """One that accepts and says nothing is joining as well."""
    async with engine(lambda server: server.answers.clear()) as server:
        worker = server.worker()
        async with watched(worker, patience=0.01):
            await until(lambda: server.count("/info") > 3)
            assert worker.state is JOINING
            assert worker.reason == "it gave no answer to any probe"


# -- what changes


async def test_worker_that_refuses_is_dead_at_once_and_back_soon() -> None:
    """A refused probe needs no second one; when the worker listens again it serves again."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker):
            for _ in range(2):
                await becomes(worker, READY)
                server.stop()
                await becomes(worker, DEAD)
                assert "nobody listens" in worker.reason
                await server.start()
            await becomes(worker, READY)


async def test_dead_worker_is_asked_at_its_own_pace() -> None:
    """A dead worker is back within a second however rarely ready ones are probed."""
    assert module.RECOVERY_INTERVAL < 1
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, interval=NEVER) as (health, _):
            await becomes(worker, READY)
            server.stop()
            health.suspect(worker, refused=True)
            assert worker.state is DEAD
            await until(lambda: "nobody listens" in worker.reason or worker.reason == "refused a connection")
            await server.start()
            await becomes(worker, READY)


@pytest.mark.parametrize("answer", [(503, b""), (500, b""), None], ids=["503", "500", "no answer"])
async def test_two_failed_probes_in_a_row_are_death(answer: tuple[int, bytes] | None) -> None:
    """One failed health probe is a warning, the second is death, and a good one between them clears it."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, interval=NEVER, patience=0.02) as (health, _):

            async def probed() -> None:
                health.suspect(worker, refused=False)
                await server.asked("/health")

            def fail() -> None:
                if answer is None:
                    server.answers.pop("/health", None)
                else:
                    server.answers["/health"] = answer

            await becomes(worker, READY)
            fail()
            await probed()
            await until(lambda: worker.strikes == 1)
            assert worker.state is READY
            server.answers["/health"] = (200, b"")
            await probed()
            await until(lambda: worker.strikes == 0)
            assert worker.reason == ""
            fail()
            await probed()
            await until(lambda: worker.strikes == 1)
            assert worker.state is READY
            await probed()
            await becomes(worker, DEAD)
            assert worker.reason == "its health probe failed"


async def test_health_route_that_is_missing() -> None:
    """An engine without the health route is as alive as one with it."""
    async with engine() as server:
        server.answers["/health"] = (404, b"")
        worker = server.worker()
        async with watched(worker, interval=0.001):
            await until(lambda: server.count("/health") > 4)
            assert worker.state is READY
            assert worker.strikes == 0


async def test_one_missing_answer_makes_a_ready_worker_no_stranger() -> None:
    """A busy worker that skips one question keeps what is known of it; twice, and it is dead."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, interval=0.001, patience=0.05):
            await becomes(worker, READY)
            del server.answers["/info"]
            await until(lambda: worker.strikes == 1)
            assert worker.state is READY
            assert worker.infos
            server.answers["/info"] = (200, b"echo m")
            await until(lambda: worker.strikes == 0)
            assert worker.state is READY


async def test_description_is_refreshed() -> None:
    """A worker that loads another model is found to have it."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, interval=0.001):
            await becomes(worker, READY)
            server.answers["/info"] = (200, b"echo n")
            await until(lambda: worker.infos["echo"].models == ("n",))
            assert server.count("/health") > server.count("/info")


async def test_refused_request_is_death_at_once() -> None:
    """What the data plane meets counts before any probe; a broken reply alone does not."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, interval=NEVER) as (health, fleet):
            await becomes(worker, READY)
            health.suspect(worker, refused=False)
            assert worker.state is READY
            health.suspect(worker, refused=True)
            assert worker.state is DEAD
            assert not fleet.usable("echo-generate")
            await becomes(worker, READY)


@pytest.mark.parametrize("state", [JOINING, UNUSABLE, DEAD])
async def test_refused_request_of_a_worker_that_is_not_ready(state: WorkerState) -> None:
    """Only a ready worker dies of a refusal: one that never was ready keeps its reason."""
    worker = Worker(Address.parse(f"http://127.0.0.1:{free_port()}"))
    worker.state, worker.reason = state, "before"
    async with watched() as (health, _):
        health.suspect(worker, refused=True)
        assert (worker.state, worker.reason) == (state, "before")


# -- pace


async def test_replies_spare_probes() -> None:
    """A worker whose replies come is not asked for its health, but still for its description."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, interval=0.002):
            await becomes(worker, READY)
            worker.last_reply_at = float("inf")
            asked, described = server.count("/health"), server.count("/info")
            await until(lambda: server.count("/info") >= described + 3)
            assert server.count("/health") <= asked + 1
            worker.last_reply_at = 0.0
            await server.asked("/health")


async def test_reply_clears_a_strike() -> None:
    """A whole reply is as good as a probe."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, interval=0.002):
            await becomes(worker, READY)
            worker.last_reply_at = float("inf")
            worker.strikes = 1
            await until(lambda: worker.strikes == 0)


async def test_suspicion_is_looked_into_whatever_replies_say() -> None:
    """A suspected worker is asked though others of its replies came."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, interval=NEVER) as (health, _):
            await becomes(worker, READY)
            worker.last_reply_at = float("inf")
            health.suspect(worker, refused=False)
            await server.asked("/health")


async def test_slow_worker_blocks_no_other() -> None:
    """One that hangs is waited for by nobody else."""
    async with engine(lambda server: server.answers.clear()) as slow, engine() as quick:
        hanging, worker = slow.worker(), quick.worker()
        async with watched(hanging, worker, patience=NEVER):
            await until(lambda: quick.count("/health") > 5)
            assert worker.state is READY
            assert slow.count("/info") == 1


async def test_one_probe_at_a_time() -> None:
    """However often a worker is suspected, watched again or falls due, one probe runs on it at a time."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, interval=0.001, recovery=0.001) as (health, _):
            await becomes(worker, READY)
            server.most_at_once = 0
            before = len(server.requests)
            async with asyncio.timeout(5):
                while len(server.requests) < before + 30:
                    health.suspect(worker, refused=False)
                    health.watch(worker)
                    await asyncio.sleep(0)
            assert server.most_at_once <= len(ECHO.probes)


async def test_suspicions_without_end_are_no_storm() -> None:
    """A worker that fails every request is not probed as often as it is suspected."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, interval=NEVER) as (health, _):
            await becomes(worker, READY)
            async with asyncio.TaskGroup() as group:
                third = group.create_task(_asked_times(server, "/health", 3))
                start = asyncio.get_running_loop().time()
                while not third.done():
                    health.suspect(worker, refused=False)
                    await asyncio.sleep(0.001)
            assert asyncio.get_running_loop().time() - start >= 2 * module.BREATHER


async def _asked_times(server: Engine, path: str, times: int) -> None:
    for _ in range(times):
        await server.asked(path)


async def test_forgotten_worker_is_not_probed() -> None:
    """A worker that was removed is asked nothing more, and a probe under way changes nothing of it."""
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, interval=0.001, patience=NEVER) as (health, _):
            await becomes(worker, READY)
            server.answers.clear()  # the next probe hangs
            await until(lambda: server.at_once > 0)
            health.forget(worker)
            health.forget(worker)
            await until(lambda: server.at_once == 0)
            asked = len(server.requests)
            health.suspect(worker, refused=False)
            await asyncio.sleep(0.02)
            assert len(server.requests) == asked
            assert worker.state is READY


async def test_forgotten_worker_can_come_back() -> None:
    """A worker with the same URL is watched anew, once."""
    async with engine() as server:
        old, new = server.worker(), server.worker()
        async with watched(old, interval=NEVER) as (health, fleet):
            await becomes(old, READY)
            health.forget(old)
            fleet.add(new)
            health.watch(new)
            await becomes(new, READY)
            assert server.count("/info") == 2


async def test_stop_ends_every_probe() -> None:
    """After ``stop`` nothing is asked, and probes under way are dropped."""
    async with engine(lambda server: server.answers.clear()) as server:
        async with watched(server.worker(), patience=NEVER):
            await until(lambda: server.at_once > 0)
        await until(lambda: server.at_once == 0)


async def test_format_that_fails_on_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """A fault of a format is logged and counts as a failed probe; the watch goes on."""

    class Broken(EchoFormat):
        broken = True

        def identify(self, replies: Any) -> Any:
            if self.broken:
                raise KeyError("model")
            return super().identify(replies)

    format: Any = Broken()
    async with engine() as server:
        worker = server.worker()
        async with watched(worker, formats=(format,)):
            await until(lambda: worker.reason == "its answers could not be read")
            assert "KeyError" in caplog.text
            format.broken = False
            await becomes(worker, READY)


# -- one question


async def answer(server: Engine, **options: Any) -> ProbeReply | None:
    worker = server.worker(**options)
    async with probe_client(timeout=0.2) as client:
        return await ask(client, worker, ProbeRequest("GET", "/info"))


async def test_question_and_answer() -> None:
    """A question is sent as it is, the prefix in front, and the connection is not kept."""
    async with engine() as server:
        server.answers["/p/info"] = (418, b"tea")
        worker = Worker(Address.parse(server.url + "/p/"))
        async with probe_client() as client:
            assert await ask(client, worker, ProbeRequest("GET", "/info")) == ProbeReply(418, b"tea")
        head = server.requests[0].lower()
        assert head.startswith(b"get /p/info http/1.1\r\n")
        assert b"\r\nconnection: close\r\n" in head
        assert b"authorization" not in head


async def test_question_with_a_body() -> None:
    """A question's body is sent as JSON."""
    async with engine() as server, probe_client() as client:
        await ask(client, server.worker(), ProbeRequest("POST", "/models", b"{}"))
        assert b"\r\ncontent-type: application/json\r\n" in server.requests[0].lower()
        assert b"\r\ncontent-length: 2\r\n" in server.requests[0].lower()


@pytest.mark.parametrize("key", [b"Bearer key", b"Bearer \xe9"])
async def test_key_is_sent(key: bytes) -> None:
    """A worker's key goes with every question, byte for byte."""
    async with engine() as server:
        await answer(server, authorization=key)
        assert b"\r\nauthorization: " + key + b"\r\n" in server.requests[0].replace(
            b"Authorization", b"authorization"
        )


async def test_redirect_is_an_answer() -> None:
    """A redirect is not followed: a worker cannot make the gateway ask others."""
    async with engine() as other, engine() as server:
        server.extra = b"location: %b/info\r\n" % other.url.encode()
        server.answers["/info"] = (307, b"")
        assert await answer(server) == ProbeReply(307, b"")
        assert other.requests == []


async def test_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are asked directly, whatever HTTP_PROXY says."""
    async with engine() as proxy, engine() as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert await answer(server) == ProbeReply(200, b"echo m")
        assert proxy.requests == []


async def test_answer_that_dribbles() -> None:
    """A worker that sends a byte now and then does not hold its prober for ever."""

    gone = asyncio.Event()

    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.transport.abort()
        gone.set()

    server = await asyncio.start_server(dribble, "127.0.0.1", 0)
    async with server, probe_client(timeout=0.05) as client:
        worker = Worker(Address.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        assert await ask(client, worker, ProbeRequest("GET", "/info")) is None
        await gone.wait()


async def test_answer_over_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is not read without end, nor one that unfolds without end."""
    monkeypatch.setattr(module, "ANSWER_LIMIT", 1000)
    async with engine() as server:
        server.answers["/info"] = (200, b"x" * 1000)
        assert await answer(server) is not None
        server.answers["/info"] = (200, b"x" * 1001)
        assert await answer(server) is None
        server.extra = b"content-encoding: gzip\r\n"
        server.answers["/info"] = (200, gzip.compress(b"x" * 100_000))
        assert await answer(server) is None


@pytest.mark.parametrize(
    "nonsense", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", b"nonsense\r\n\r\n"]
)
async def test_answer_that_is_none(nonsense: bytes) -> None:
    """A connection that breaks off, or speaks no HTTP, is no answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(nonsense)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, probe_client(timeout=1) as client:
        worker = Worker(Address.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        assert await ask(client, worker, ProbeRequest("GET", "/info")) is None


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "l" * 64 + ".example"])
async def test_name_that_cannot_be_resolved(host: str) -> None:
    """A name that is none is a worker nobody listens for."""
    async with probe_client() as client:
        with pytest.raises(Unreachable):
            await ask(client, Worker(Address.parse(f"http://{host}:1")), ProbeRequest("GET", "/info"))


async def test_describe_once() -> None:
    """A worker can be asked once, without a watch."""
    async with engine() as server, probe_client() as client:
        infos = await describe(client, server.worker(), [ECHO, OTHER])
        assert infos is not None
        assert list(infos) == ["echo"]
        server.stop()
        with pytest.raises(Unreachable):
            await describe(client, server.worker(), [ECHO])


async def test_describe_what_gives_no_answer() -> None:
    """Silence is told from a stranger's answer."""
    async with engine(lambda server: server.answers.clear()) as server, probe_client(timeout=0.02) as client:
        assert await describe(client, server.worker(), [ECHO]) is None


async def test_probes_over_tls() -> None:
    """An https worker is probed under the trust that was given, and not reached without it."""
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)
    server = Engine()
    await server.start(theirs)
    worker = Worker(Address.parse(server.url.replace("http:", "https:")))
    question = ProbeRequest("GET", "/info")
    async with probe_client(ours) as trusting, probe_client() as careful:
        assert await ask(trusting, worker, question) == ProbeReply(200, b"echo m")
        with pytest.raises(Unreachable):
            await ask(careful, worker, question)
    server.stop()
