"""Scripted answers and X-Sim-* headers, over the wire."""

from __future__ import annotations

import asyncio
import re

import pytest

from gateway.sim import Drop, Half, Pace, Raw, Reply, Script, Silence, SimConfig, SimServer
from gateway.sim.script import BadScript, from_headers
from tests.sim.calls import begin, generate, ids
from tests.sim.client import Client, Lines

KINDS = pytest.mark.parametrize("kind", ["sglang", "vllm"])


async def test_scripts_are_taken_in_order_and_repeated() -> None:
    """A reply has its status, body, type and headers; after the last script requests are answered as
    usual.
    """
    full = Reply(status=503, body=b"full", content_type="text/plain", headers=(("Retry-After", "7"),))
    async with SimServer("vllm") as sim:
        sim.behave(Reply(status=500), full, times=2)
        answers = [await generate(sim) for _ in range(5)]
    assert [answer.status for answer in answers] == [500, 503, 500, 503, 200]
    assert (answers[1].body, answers[1].content_type) == (b"full", "text/plain")
    assert ("Retry-After", "7") in answers[1].headers


@pytest.mark.parametrize(
    ("script", "read"),
    [
        (Half(body=b'{"text":'), rb'HTTP/1\.1 200 OK.*content-length: 16\r\n.*\r\n\r\n\{"text":'),
        (Raw(data=b"\x00\x01garbage"), rb"\x00\x01garbage"),
        (Drop(reset=False), rb""),
    ],
)
async def test_broken_answer_is_what_the_client_reads_before_the_end(script: Script, read: bytes) -> None:
    async with SimServer("sglang") as sim:
        sim.behave(script)
        client = await begin(sim)
        assert re.fullmatch(read, await client.reader.read(), re.DOTALL)
        client.leave()
    assert sim.log[0].cut is not None and sim.log[0].client_gone is None


@pytest.mark.parametrize(
    ("headers", "events", "complete"),
    [
        ([("X-Sim-Cut-After", "1"), ("X-Sim-Cut", "chunk")], 2, False),
        ([("X-Sim-Cut-After", "3")], 3, True),
    ],
)
async def test_stream_is_cut_inside_a_chunk_or_before_done(
    headers: Lines, events: int, complete: bool
) -> None:
    """``chunk`` sends half of the next event; a cut after the last event sends no [DONE]."""
    async with SimServer("sglang") as sim:
        client = await begin(sim, 3, stream=True, headers=headers)
        await client.head()
        rest = await client.reader.read()
        client.leave()
    assert rest.count(b"data: ") == events and b"[DONE]" not in rest
    assert rest.endswith(b"\n\n\r\n") is complete


async def test_script_can_be_for_any_route() -> None:
    async with SimServer("sglang") as sim:
        sim.behave(Reply(status=500), path="/ready")
        client = await Client.connect(sim.port)
        client.send("/ready", method="GET")
        assert (await client.answer()).status == 500
        client.leave()
        assert (await generate(sim)).status == 200


@pytest.mark.parametrize("script", [Drop(), Drop(early=True)])
async def test_drop_resets(script: Script) -> None:
    """A RST, no byte of an answer; ``early`` without the body having been read."""
    async with SimServer("sglang") as sim:
        sim.behave(script)
        client = await begin(sim)
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
        arrival = await sim.arrived()
        assert arrival.client_gone is None and arrival.status is None
        assert bool(arrival.body) is not (script == Drop(early=True))
        client.leave()


async def test_unread_silence_reads_no_body() -> None:
    async with SimServer("sglang") as sim:
        sim.behave(Silence(unread=True))
        async with await Client.connect(sim.port) as client:
            client.writer.write(b"POST /generate HTTP/1.1\r\nContent-Length: 90000000\r\n\r\n")
            await sim.arrived()
            client.writer.write(bytes(30_000_000))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.writer.drain()
            client.writer.transport.abort()


@KINDS
@pytest.mark.parametrize(
    ("cut", "error"), [("fin", asyncio.IncompleteReadError), ("rst", ConnectionResetError)]
)
async def test_stream_is_cut_after_so_many_events(kind: str, cut: str, error: type[Exception]) -> None:
    async with SimServer(kind, SimConfig(cut_after=2, cut=cut, token_delay=0.005)) as sim:
        client = await begin(sim, 50, stream=True)
        await client.head()
        assert [(await client.chunk())[:6] for _ in range(2)] == [b"data: "] * 2
        with pytest.raises((error, ValueError)):
            await client.chunk()
        client.leave()
        assert sim.log[0].events == 2 and sim.log[0].finished is None
        assert not sim.running


@KINDS
async def test_unary_answer_is_cut_in_half(kind: str) -> None:
    async with SimServer(kind, SimConfig(cut_after=0)) as sim:
        client = await begin(sim)
        _, headers = await client.head()
        rest = await client.reader.read()
        assert 0 < len(rest) < int(dict(headers)["content-length"])
        client.leave()


@pytest.mark.virtual_time
@KINDS
async def test_stream_stalls_after_so_many_events(kind: str) -> None:
    async with SimServer(kind) as sim:
        client = await begin(sim, 50, stream=True, headers=[("X-Sim-Stall-After", "2")])
        await client.head()
        for _ in range(2):
            await client.chunk()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.chunk()
        client.leave()
        await sim.client_gone()


@pytest.mark.virtual_time
@KINDS
async def test_delays_are_kept(kind: str) -> None:
    pace = Pace(start_delay=0.05, prefill_base=0.05, token_delay=0.02)
    async with SimServer(kind) as sim:
        sim.behave(pace)
        loop = asyncio.get_running_loop()
        start = loop.time()
        client = await begin(sim, 3, stream=True)
        await client.head()
        head = loop.time() - start
        await client.chunk()
        first = loop.time() - start
        await client.answer_rest()
        complete = loop.time() - start
        client.leave()
    assert 0.049 <= head and head + 0.04 <= first and first + 0.035 <= complete  # timers fire by whole ms


@KINDS
async def test_header_forces_the_number_of_tokens(kind: str) -> None:
    async with SimServer(kind) as sim:
        assert len(ids(await generate(sim, 4, headers=[("X-Sim-Tokens", "9")]))) == 9


@KINDS
async def test_bad_header_is_named_in_the_error(kind: str) -> None:
    """A 400 that names it, and no generation."""
    async with SimServer(kind) as sim:
        unknown = await generate(sim, headers=[("X-Sim-Nonsense", "1")])
        wrong = await generate(sim, headers=[("X-Sim-Token-Delay", "soon")])
    assert unknown.status == wrong.status == 400
    assert "x-sim-nonsense" in unknown.json["error"]["message"]
    assert "'soon'" in wrong.json["error"]["message"]


async def test_header_scripts_an_answer() -> None:
    """A status with a body, or a broken connection."""
    async with SimServer("sglang") as sim:
        headers = [("X-Sim-Status", "429"), ("X-Sim-Body", '{"error":"slow"}')]
        answer = await generate(sim, headers=headers)
        client = await begin(sim, headers=[("X-Sim-Drop", "late-fin")])
        assert await client.reader.read() == b""
        client.leave()
    assert (answer.status, answer.body) == (429, b'{"error":"slow"}')


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("Token-Delay", "nan"), ("cut", "hard"), ("drop", "maybe"), ("tokens", "1.5"), ("status", "x")],
)
def test_header_with_a_wrong_value_is_refused(name: str, wrong: str) -> None:
    with pytest.raises(BadScript):
        from_headers([(b"x-sim-" + name.encode(), wrong.encode())])


@KINDS
async def test_failure_inside_the_engine_comes_late_in_a_stream(kind: str) -> None:
    """The tokens before it, then the engine's own form of it in a 200, then [DONE]; unary gets a 500."""
    async with SimServer(kind, SimConfig(fail_after=2)) as sim:
        streamed = await generate(sim, 9, stream=True)
        unary = await generate(sim, 9)
    assert streamed.status == 200 and streamed.body.endswith(b"data: [DONE]\n\n")
    assert unary.status == 500
    last = streamed.events[-1]
    if kind == "sglang":
        assert last["meta_info"]["finish_reason"]["status_code"] == 500
        assert unary.json["code"] == 500
    else:
        assert last["error"]["code"] == unary.json["error"]["code"] == 500
    assert len(streamed.events) == 3
