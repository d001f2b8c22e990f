"""The HTTP server under the simulated engines, byte by byte."""

from __future__ import annotations

import asyncio

import pytest

from gateway.sim import SimConfig, SimServer
from tests.sim.calls import JSON, begin, body
from tests.sim.client import Client, ask


async def test_arrival_holds_target_headers_and_body_as_they_were_sent() -> None:
    """Case, order, spaces and repetitions survive in the log."""
    content = b'{ "input_ids" : [5], "big":1234567890123456789012345, "sampling_params":{"max_new_tokens":1}}'
    lines = [("CoNtent-TYPE", "application/json"), ("X-A", "1"), ("x-a", "2")]
    async with SimServer("sglang") as sim:
        await ask(sim.port, "/generate?a=%20b&a", content, headers=lines)
        arrival = sim.log[0]
    assert (arrival.method, arrival.target) == (b"POST", b"/generate?a=%20b&a")
    sent = [(name.encode(), value.encode()) for name, value in lines]
    assert arrival.headers[:4] == [(b"Host", b"sim"), *sent]
    assert (arrival.body, arrival.status) == (content, 200)


async def test_chunked_body_is_read_without_its_framing() -> None:
    """The log has the content, and the engine reads it like any other."""
    content = body("sglang")
    async with SimServer("sglang") as sim, await Client.connect(sim.port) as client:
        head = (
            "POST /generate HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        client.writer.write(head.encode())
        for byte in content:
            client.writer.write(b"1\r\n%c\r\n" % byte)
        client.writer.write(b"0\r\n\r\n")
        answer = await client.answer()
        assert sim.log[0].body == content
    assert answer.status == 200


async def test_expect_continue_is_answered_before_the_body() -> None:
    """A client that waits for 100 gets it."""
    content = body("vllm")
    async with SimServer("vllm") as sim, await Client.connect(sim.port) as client:
        lines = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        head = f"POST /inference/v1/generate HTTP/1.1\r\n{lines}Expect: 100-continue\r\n\r\n"
        client.writer.write(head.encode())
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(content)
        assert (await client.answer()).status == 200


async def test_connection_serves_one_request_after_the_other() -> None:
    """Kept alive, and pipelined requests are answered in order."""
    async with SimServer("sglang") as sim, await Client.connect(sim.port) as client:
        for tokens in (1, 2, 3):
            client.send("/generate", body("sglang", tokens), headers=JSON)
        made = [len((await client.answer()).json["output_ids"]) for _ in range(3)]
        assert sim.accepted == 1
    assert made == [1, 2, 3]


async def test_connection_close_is_honoured() -> None:
    async with SimServer("sglang") as sim, await Client.connect(sim.port) as client:
        client.send("/ready", method="GET", headers=[("Connection", "close")])
        answer = await client.answer()
        assert await client.reader.read() == b""
    assert ("connection", "close") in answer.headers


async def test_idle_connection_is_closed() -> None:
    """After the keep-alive time, not before a request that takes longer."""
    config = SimConfig(keep_alive=0.05, prefill_base=0.2)
    async with SimServer("sglang", config) as sim, await Client.connect(sim.port) as client:
        client.send("/generate", body("sglang"), headers=JSON)
        assert (await client.answer()).status == 200
        async with asyncio.timeout(2):
            assert await client.reader.read() == b""


async def test_close_idle_closes_idle_connections_only() -> None:
    async with SimServer("sglang", SimConfig(prefill_base=0.1)) as sim:
        busy, idle = await begin(sim), await Client.connect(sim.port)
        await sim.arrived()
        sim.close_idle()
        assert await idle.reader.read() == b""
        assert (await busy.answer()).status == 200
        idle.leave()
        busy.leave()


async def test_garbage_is_refused_as_by_uvicorn() -> None:
    """A 400 in plain text, then the connection ends."""
    async with SimServer("vllm") as sim, await Client.connect(sim.port) as client:
        client.writer.write(b"not http at all\r\n\r\n")
        answer = await client.answer()
        assert await client.reader.read() == b""
    assert (answer.status, answer.body) == (400, b"Invalid HTTP request received.")


async def test_upgrade_offer_is_ignored() -> None:
    """A client that offers HTTP/2 is served in HTTP/1.1."""
    lines = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c")]
    async with SimServer("sglang") as sim:
        assert (await ask(sim.port, "/ready", method="GET", headers=lines)).status == 200


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("kind", ["sglang", "vllm"])
async def test_disconnect_from_a_stream_is_noticed_at_once(kind: str, reset: bool) -> None:
    """By FIN or RST, in the middle of a silence."""
    async with SimServer(kind, SimConfig(stall_after=1)) as sim:
        client = await begin(sim, 100, stream=True)
        await sim.streaming()
        client.leave(reset=reset)
        async with asyncio.timeout(1):
            arrival = await sim.client_gone()
        assert arrival.client_gone is not None and arrival.finished is None


async def test_unread_stream_stops_the_writing() -> None:
    """A slow reader costs no memory: its events are merged, and all tokens arrive in the end."""
    async with SimServer("vllm", SimConfig(max_model_len=400_000)) as sim:
        client = await begin(sim, 100_000, stream=True)
        await sim.arrived()
        async with asyncio.timeout(20):
            await sim.idle()
        written = sim.log[0].events
        answer = await client.answer()
        client.leave()
        assert sim.log[0].finished is not None
    made = [token for event in answer.events for token in event["choices"][0]["token_ids"]]
    assert len(made) == 100_000
    assert written < 100_000


async def test_unread_stream_waits_for_its_reader_if_events_are_not_merged() -> None:
    """Without merging every event carries one token, and generation goes no further than the reader."""
    config = SimConfig(max_model_len=400_000, merge_unread=False)
    async with SimServer("vllm", config) as sim:
        client = await begin(sim, 100_000, stream=True)
        async with asyncio.timeout(20):
            await sim.until(lambda: any(sequence.parked for sequence in sim.engine.scheduler.running))
        assert sim.log[0].events < 100_000
        answer = await client.answer()
        client.leave()
    assert [len(event["choices"][0]["token_ids"]) for event in answer.events] == [1] * 100_000


async def test_end_of_the_server_is_no_disconnect_of_the_client() -> None:
    """``kill`` breaks connections itself; the log records no disconnect."""
    async with SimServer("sglang", SimConfig(stall_after=0)) as sim:
        client = await begin(sim, stream=True)
        await client.head()
        await sim.kill()
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
        assert sim.log[0].client_gone is None
        client.leave()
