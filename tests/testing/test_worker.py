"""The scripted worker follows its script, as a client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.formats.contract import ReplyHead
from gateway.formats.worker_contract import ProbeReply, ProbeRequest
from gateway.testing.worker import Answer, End, ReceivedRequest, ScriptedWorker

HEAD = ReplyHead(201, [(b"content-type", b"text/x"), (b"x-a", b"1"), (b"x-a", b"2")])
ABOUT = ProbeRequest("GET", "/about")
ASKED = ProbeRequest("POST", "/make", b"{}")


@pytest.fixture
async def worker() -> AsyncIterator[ScriptedWorker]:
    probes = {ABOUT: ProbeReply(200, b"me"), ASKED: ProbeReply(400, b"refused")}
    async with ScriptedWorker(b"/p/make", probes, b"/p").running() as worker:
        yield worker


@pytest.fixture
async def client(worker: ScriptedWorker) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=worker.url, timeout=10, trust_env=False) as client:
        yield client


async def test_answers_are_given_in_turn_and_calls_are_kept(
    worker: ScriptedWorker, client: httpx.AsyncClient
) -> None:
    worker.answers += [Answer(HEAD, (b"a", b"", b"b")), lambda call: Answer(HEAD, (call.body,))]
    first = await client.post("/make", content=b"one", headers={"X-Tag": "t"})
    second = await client.post("/make", content=b"two")
    assert (first.status_code, first.content, first.headers.get_list("x-a")) == (201, b"ab", ["1", "2"])
    assert second.content == b"two"
    assert [(call.method, call.target, call.body) for call in worker.calls] == [
        (b"POST", b"/p/make", b"one"),
        (b"POST", b"/p/make", b"two"),
    ]
    assert (b"x-tag", b"t") in worker.calls[0].headers


async def test_probes_are_answered_and_not_noted(worker: ScriptedWorker, client: httpx.AsyncClient) -> None:
    """Also a probe of the same target as the calls, recognised by its body."""
    assert (await client.get("/about")).content == b"me"
    assert (await client.post("/make", content=b"{}")).content == b"refused"
    assert not worker.calls and not worker.others


async def test_any_other_request_is_noted_and_answered(
    worker: ScriptedWorker, client: httpx.AsyncClient
) -> None:
    assert (await client.post("/stop", content=b"x")).json() == {}
    assert [call.target for call in worker.others] == [b"/p/stop"]


async def test_cut_answer_is_visibly_cut(worker: ScriptedWorker, client: httpx.AsyncClient) -> None:
    worker.answers.append(Answer(HEAD, (b"a",), End.CUT))
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post("/make")


async def test_silence_lasts_until_the_peer_hangs_up(
    worker: ScriptedWorker, client: httpx.AsyncClient
) -> None:
    """Also for a call after the last answer, which is recorded, too."""
    worker.answers.append(Answer(HEAD, (b"a",), End.SILENCE))
    for pieces in ([b"a"], []):
        async with client.stream("POST", "/make") as reply:
            call: ReceivedRequest = worker.calls[-1]
            if pieces:
                assert await anext(reply.aiter_raw()) == pieces[0]
            assert not call.disconnected.is_set()
        async with asyncio.timeout(10):
            await call.disconnected.wait()
