"""How exchanges end: client disconnects, silence, replies without an end. (Ids: test_ids.py)"""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.sim import Drop, Pace, Raw, Reply, Silence, SimConfig, SimServer
from tests.support.gateway import RawClient, all_released, arrived, generates, rig, sse, until
from tests.support.generate import ID, KINDS, body_of

#: Seconds within which a client's disconnect has to reach its engine.
NOTICED = 0.25


@pytest.mark.virtual_time
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize(
    ("pace", "received"),
    [
        (Silence(), b""),
        (Pace(prefill_base=60.0), b"\r\n\r\n"),
        (Pace(stall_after=2), b"\n\n"),
        (Pace(token_delay=0.02), b"\n\n"),
    ],
    ids=["waiting", "before-first-byte", "silence", "mid-stream"],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_leaving_closes_the_worker_and_aborts_exactly_that_id(
    kind: str, pace: Pace | Silence, received: bytes, reset: bool
) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(pace)
        client = await RawClient.connect(gateway.port)
        sent = body_of(kind, 2000, bool(received), **{ID[kind]: "leaver"})
        client.request(KINDS[kind], json.dumps(sent).encode())
        await arrived(1, sim)
        if received:
            await client.head()
        if received == b"\n\n":
            await client.reader.readuntil(received)
        left_at = asyncio.get_running_loop().time()
        client.leave(reset=reset)
        gone = await sim.client_gone(1)
        assert gone.client_gone is not None and gone.client_gone - left_at < NOTICED
        await until(lambda: len(sim.aborts) == 1)
        assert sim.aborts[0].at - left_at < NOTICED
        expected = "leaver" if kind == "sglang" else "generate-tokens-leaver"
        assert [call.ids for call in sim.aborts] == [(expected,)]
        await until(lambda: all_released(gateway))
        assert len(generates(sim)) == 1
        metrics = (await gateway.client.get("/metrics")).text
        assert 'status="error",error_type="cancelled"} 1' in metrics


@pytest.mark.parametrize("kind", KINDS)
async def test_leaving_while_the_body_comes_sends_nothing_to_a_worker(kind: str) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        client = await RawClient.connect(gateway.port)
        head = f"POST {KINDS[kind]} HTTP/1.1\r\nhost: g\r\ncontent-length: 1000\r\n\r\n"
        client.writer.write(head.encode() + b"{")
        await until(lambda: gateway.app.lifecycle.open_exchanges == 1)
        client.leave(reset=True)
        await until(lambda: all_released(gateway))
        assert not generates(sim) and not sim.aborts


@pytest.mark.parametrize("kind", KINDS)
async def test_stream_that_ends_without_a_terminal_event_is_a_failure(kind: str) -> None:
    """A clean end of the connection is no clean end of the generation."""
    event = b'data: {"output_ids":[1],"meta_info":{"finish_reason":null},"choices":[]}\n\n'
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        for ending in (b"", b"data: [DONE]\n\n"):
            sim.behave(Reply(body=event + ending, content_type="text/event-stream"))
            reply = await gateway.client.post(KINDS[kind], json=body_of(kind, 5, True))
            assert reply.content.startswith(event)
            assert reply.content.count(b"[DONE]") == 1
            assert "error" in sse(reply.content)[-1]


async def test_cause_of_a_workers_failure_is_logged_once_without_the_reply(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And not at all where the client or the gateway is at fault."""
    caplog.set_level("INFO", "gateway.proxy.live")
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, probe_interval_secs=60) as gateway:
        sim.behave(Reply(body=b'{"secret":', content_type="application/json"))
        assert (await gateway.client.post("/generate", json=body_of("sglang"))).status_code == 502
        assert (await gateway.client.post("/generate", content=b"{")).status_code == 400
        sim.behave(Drop(reset=True))
        assert (await gateway.client.post("/generate", json=body_of("sglang"))).status_code == 502
        await sim.kill()
        assert (await gateway.client.post("/generate", json=body_of("sglang"))).status_code == 502
        lines = [record.getMessage() for record in caplog.records if record.name == "gateway.proxy.live"]
        malformed, incomplete, gone = lines
        assert malformed.startswith(f"upstream_malformed at {sim.url}: ") and "secret" not in malformed
        assert malformed.endswith("DecodeError)")
        assert incomplete.startswith(f"upstream_incomplete at {sim.url}: ") and "reset by peer" in incomplete
        assert gone.startswith("connect_failed at ") and "(ConnectionRefusedError: " in gone


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", KINDS)
async def test_silence_of_a_stream_is_filled_only_when_asked_for(kind: str) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, sse_keep_alive_interval_ms=9000) as gateway:
        sim.behave(Pace(prefill_base=25.0))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind, 2, True), timeout=None)
        assert reply.content.count(b":\n") == 2
        assert b":\n\n" not in reply.content  # to some decoders an empty line is an empty event
        assert reply.content.endswith(b"data: [DONE]\n\n")


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", KINDS)
async def test_silence_of_a_compressed_stream_is_left_alone(kind: str) -> None:
    """A comment in the middle of it would break all that follows."""
    started = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\r\nhalf"
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, sse_keep_alive_interval_ms=10) as gateway:
        sim.behave(Raw(data=started, close=False))
        client = await RawClient.connect(gateway.port)
        client.request(KINDS[kind], json.dumps(body_of(kind, 2, True)).encode())
        await client.reader.readuntil(b"half\r\n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await client.reader.read(1)
        client.leave()


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", KINDS)
async def test_reply_after_a_long_silence_is_complete(kind: str) -> None:
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Pace(prefill_base=120.0))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind), timeout=None)
        assert reply.status_code == 200
        assert len(generates(sim)) == 1
