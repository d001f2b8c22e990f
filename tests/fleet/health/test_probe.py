"""Asking a worker: one question, one whole answer, within limits."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from typing import Any

import pytest
import trustme

from gateway.fleet.health import probe as module
from gateway.fleet.health.probe import Unreachable, ask, interview
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo
from gateway.upstream.connector import Connector
from gateway.upstream.resolver import Resolver
from tests.fleet.engine import EchoFormat, Engine, connected, engine
from tests.fleet.support import fleet_with, worker_at
from tests.support.gateway import until
from tests.support.scripted import scripted

ECHO: Any = EchoFormat()
OTHER: Any = EchoFormat("other")
INFO = ProbeRequest("GET", "/info")


async def answer(server: Engine, **options: Any) -> ProbeReply | None:
    return await ask(server.worker(**options), INFO)


async def test_question_is_sent_behind_the_prefix_on_a_connection_that_is_not_kept() -> None:
    async with engine() as server:
        server.answers["/p/info"] = (418, b"tea")
        worker = connected(worker_at(server.url + "/p/"))
        assert await ask(worker, INFO) == ProbeReply(418, b"tea")
        head = server.requests[0].lower()
        assert head.startswith(b"get /p/info http/1.1\r\n")
        assert b"\r\nconnection: close\r\n" in head
        assert b"authorization" not in head
        await ask(server.worker(), ProbeRequest("POST", "/models", b"{}"))
        assert b"\r\ncontent-type: application/json\r\n" in server.requests[1].lower()
        assert b"\r\ncontent-length: 2\r\n" in server.requests[1].lower()


async def test_key_of_a_worker_is_sent_with_every_question_byte_for_byte() -> None:
    async with engine() as server:
        await answer(server, authorization=b"Bearer \xe9")
        assert b"\r\nauthorization: Bearer \xe9\r\n" in server.requests[0].replace(b"Auth", b"auth")


async def test_redirect_is_an_answer_and_not_followed() -> None:
    async with engine() as other, engine() as server:
        server.extra = b"location: %b/info\r\n" % other.url.encode()
        server.answers["/info"] = (307, b"")
        assert await answer(server) == ProbeReply(307, b"")
        assert other.requests == []


async def test_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine() as proxy, engine() as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert await answer(server) == ProbeReply(200, b"echo m")
        assert proxy.requests == []


async def test_answer_that_arrives_byte_by_byte_ends_in_time() -> None:
    async with scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", drip=b".") as server:
        worker = connected(worker_at(server.url))
        while not server.heads:  # on a busy machine even connecting may take longer than the limit
            assert await ask(worker, INFO, answer_timeout=0.05) is None
        await until(lambda: server.open == 0)


async def test_answer_over_the_limit_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_LIMIT", 1000)
    async with engine() as server:
        server.answers["/info"] = (200, b"x" * 1000)
        assert await answer(server) is not None
        server.answers["/info"] = (200, b"x" * 1001)
        assert await answer(server) is None
        server.extra = b"content-encoding: gzip\r\n"
        packed = gzip.compress(b"x" * 100_000)
        server.answers["/info"] = (200, packed)
        assert await answer(server) == ProbeReply(200, packed)
        assert b"\r\naccept-encoding: identity\r\n" in server.requests[-1]


@pytest.mark.parametrize(
    "nonsense", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", b"nonsense\r\n\r\n"]
)
async def test_broken_answer_is_none(nonsense: bytes) -> None:
    async with scripted(nonsense) as server:
        worker = connected(worker_at(server.url))
        assert await ask(worker, INFO, answer_timeout=1) is None


async def test_question_goes_to_the_first_address_that_accepts_with_the_name_as_host() -> None:
    resolver = Resolver(
        lambda host, port, **kind: [(2, 1, 6, "", (to, 0)) for to in ("127.0.0.99", "127.0.0.1")]
    )
    async with engine() as server:
        worker = worker_at(f"http://worker.example:{server.port}")
        fleet_with(worker, connector=Connector(5.0, resolver=resolver))
        assert await ask(worker, INFO) == ProbeReply(200, b"echo m")
        assert b"\r\nhost: worker.example:%d\r\n" % server.port in server.requests[-1].lower()


async def test_interview_without_an_answer_differs_from_one_of_another_server_or_of_none() -> None:
    async with engine() as server:
        found = await interview(server.worker(), [ECHO, OTHER])
        assert found is not None and list(found.infos) == ["echo"]
        server.answers.clear()
        assert await interview(server.worker(), [ECHO], answer_timeout=0.02) is None
        server.stop()
        with pytest.raises(Unreachable):
            await interview(server.worker(), [ECHO])


async def test_details_are_asked_only_of_a_worker_that_its_format_recognises() -> None:
    knows: Any = EchoFormat()
    knows.details = (ProbeRequest("GET", "/size"),)
    knows.identify = lambda replies: (
        None if "/info" not in replies else WorkerInfo("echo", "echo", True, version=str("/size" in replies))
    )
    other: Any = EchoFormat("other")
    other.details = (ProbeRequest("GET", "/unheard"),)
    async with engine() as server:
        server.answers["/size"] = (200, b"7")
        found = await interview(server.worker(), [knows, other])
        assert found is not None and found.infos["echo"].version == "True"
        assert (server.count("/size"), server.count("/unheard")) == (1, 0)


async def test_https_worker_is_probed_under_the_given_trust_alone() -> None:
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("worker.example").configure_cert(theirs)
    authority.configure_trust(ours)
    async with engine(tls=theirs) as server:
        resolver = Resolver(lambda host, port, **kind: [(2, 1, 6, "", ("127.0.0.1", 0))])
        trusting, other = (worker_at(f"https://worker.example:{server.port}") for _ in range(2))
        fleet_with(trusting, connector=Connector(5.0, ours, resolver=resolver))
        fleet_with(other, connector=Connector(5.0, resolver=resolver))
        assert await ask(trusting, INFO) == ProbeReply(200, b"echo m")
        with pytest.raises(Unreachable):
            await ask(other, INFO)


async def test_cancelled_question_closes_its_connection() -> None:
    async with engine({}) as server:
        for step in range(60):
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(ask(server.worker(), INFO))
                for _ in range(step % 30):
                    await asyncio.sleep(0)
                asking.cancel()
        await until(lambda: server.at_once == 0)
