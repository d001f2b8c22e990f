"""The scripted worker follows its script, as a client sees it."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from gateway.formats.contract import ReplyHead
from gateway.formats.worker_contract import ProbeReply, ProbeRequest
from gateway.testing.worker import Answer, End, ScriptedWorker

HEAD = ReplyHead(201, [(b"content-type", b"text/x"), (b"x-a", b"1"), (b"x-a", b"2")])
PROBES = {
    ProbeRequest("GET", "/about"): ProbeReply(200, b"me"),
    ProbeRequest("POST", "/make", b"{}"): ProbeReply(400, b"refused"),
}


async def test_answers_are_given_in_turn_and_calls_are_recorded_except_probes() -> None:
    """Also a probe of the same target as the calls, recognised by its body."""
    async with (
        ScriptedWorker(b"/p/make", PROBES, b"/p").running() as worker,
        httpx.AsyncClient(base_url=worker.url, timeout=10, trust_env=False) as client,
    ):
        worker.answers += [Answer(HEAD, (b"a", b"", b"b")), lambda call: Answer(HEAD, (call.body,))]
        first = await client.post("/make", content=b"one", headers={"X-Tag": "t"})
        assert (first.status_code, first.content, first.headers.get_list("x-a")) == (201, b"ab", ["1", "2"])
        assert (await client.post("/make", content=b"two")).content == b"two"
        calls = [(call.method, call.target, call.body) for call in worker.calls]
        assert calls == [(b"POST", b"/p/make", b"one"), (b"POST", b"/p/make", b"two")]
        assert (b"x-tag", b"t") in worker.calls[0].headers
        assert (await client.get("/about")).content == b"me"
        assert (await client.post("/make", content=b"{}")).content == b"refused"
        assert len(worker.calls) == 2 and not worker.others
        assert (await client.post("/stop", content=b"x")).json() == {}
        assert [call.target for call in worker.others] == [b"/p/stop"]


async def test_cut_answer_is_visibly_cut_and_silence_lasts_until_the_peer_hangs_up() -> None:
    """Also for a call after the last answer, which is recorded, too."""
    async with (
        ScriptedWorker(b"/make", PROBES).running() as worker,
        httpx.AsyncClient(base_url=worker.url, timeout=10, trust_env=False) as client,
    ):
        worker.answers += [Answer(HEAD, (b"a",), End.CUT), Answer(HEAD, (b"a",), End.SILENCE)]
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/make")
        for pieces in ([b"a"], []):
            async with client.stream("POST", "/make") as reply:
                call = worker.calls[-1]
                if pieces:
                    assert await anext(reply.aiter_raw()) == pieces[0]
                assert not call.disconnected.is_set()
            async with asyncio.timeout(10):
                await call.disconnected.wait()
