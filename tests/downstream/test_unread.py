"""Clients that do not read their replies: how many bytes a gateway buffers for them, and for how long."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from gateway.downstream.connection import ClientConnection
from gateway.downstream.request import ServerRequest
from gateway.proxy.live import LiveExchange
from gateway.sim import Raw, Reply, SimConfig, SimServer
from tests.downstream.raw import SMALL, TYPE, raw_client
from tests.support.gateway import RawClient, all_released, eventually, limit_hits, rig, until
from tests.support.generate import KINDS, body_of

HEAD = f"POST /generate HTTP/1.1\r\nhost: g\r\n{TYPE}\r\n".encode()
MOST = 1536 * 1024
HUGE = Reply(body=b'{"text":"' + b"a" * 40_000_000 + b'"}')


def events(size: int) -> Raw:
    """Return a stream of 40 MB in events of ``size`` bytes, which does not end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    event = b'data: {"text":"' + b"a" * size + b'"}\n\n'
    return Raw(data=head + event * (40_000_000 // len(event)), close=False)


async def rest_of(client: RawClient, piece: int = 2**20) -> int:
    """Return the number of bytes until the connection ends or is reset."""
    size = 0
    with suppress(ConnectionResetError):
        while data := await client.reader.read(piece):
            size += len(data)
    return size


@pytest.mark.virtual_time
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_reply_that_is_not_read_is_truncated_and_aborted_at_the_worker(
    kind: str, stream: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"unread_timeout_secs": 2, "access_log": True}
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, **settings) as gateway:
        sim.behave(events(400) if stream else HUGE)
        async with raw_client(gateway, limit=4096) as client:
            client.request(KINDS[kind], json.dumps(body_of(kind, 5, stream)).encode())
            await client.head()
            await until(lambda: all_released(gateway))
            assert await rest_of(client) < 40_000_000
            await sim.abort_called(1)
        assert await limit_hits(gateway) == {"unread": 1}
        text = (await gateway.client.get("/metrics")).text
        assert 'failures_total{class="Timeout",reason="request.timeout"} 1\n' in text
    [line] = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (line["error"], line["outcome"], line["status"]) == ("reply_unread", "failed", 200)


@pytest.mark.parametrize(
    ("reply", "most"),
    [
        (HUGE, MOST),
        (events(40), 256 * 1024),
        (events(65_536), 512 * 1024),
        (events(8_000_000), 8_000_000 + MOST),
    ],
    ids=["unary", "small events", "large events", "huge events"],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_unread_reply_is_buffered_up_to_one_and_a_half_mebibytes_or_one_event(
    kind: str, reply: Raw | Reply, most: int
) -> None:
    """Counted over all buffers between the socket of the worker and that of the client."""
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(reply)
        async with raw_client(gateway, limit=4096) as client:
            stream = isinstance(reply, Raw)
            client.request(KINDS[kind], json.dumps(body_of(kind, 5, stream)).encode())
            await client.head()
            [live] = gateway.app.lifecycle._open
            assert isinstance(live, LiveExchange) and live.attempt is not None
            assert isinstance(live.client, ServerRequest)
            wire, upstream = live.client.wire, live.attempt.connection
            assert isinstance(wire, ClientConnection)
            await until(lambda: wire.write_paused and upstream._reading_paused)
            assert wire._transport.get_write_buffer_size() + upstream._reply.buffered <= most


@pytest.mark.virtual_time
async def test_reply_that_is_read_with_pauses_is_not_truncated() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, unread_timeout_secs=6) as gateway:
        sim.behave(HUGE)
        async with raw_client(gateway, limit=4096) as client:
            client.request("/generate", SMALL)
            await client.head()
            for _ in range(4):
                await asyncio.sleep(4)
                await client.reader.readexactly(len(HUGE.body) // 4)
            assert await limit_hits(gateway) == {}


@pytest.mark.virtual_time
async def test_pipelined_requests_whose_replies_are_not_read_end_as_well() -> None:
    async with SimServer("sglang", SimConfig()) as sim:
        async with rig(sim.url, unread_timeout_secs=2, keep_alive_timeout_secs=2) as gateway:
            for last in (b"", b"connection: close\r\n"):
                for _ in range(15):
                    sim.behave(Reply(body=b'{"text":"' + b"a" * 1_000_000 + b'"}'))
                async with raw_client(gateway, limit=4096) as client:
                    before = (await limit_hits(gateway)).get("unread", 0)
                    head = HEAD + b"content-length: %d\r\n" % len(SMALL)
                    client.writer.write(14 * (head + b"\r\n" + SMALL) + head + last + b"\r\n" + SMALL)

                    async def truncated(before: int = before) -> bool:
                        return (await limit_hits(gateway)).get("unread", 0) > before

                    await eventually(truncated)
                    assert await rest_of(client) < 15_000_000
                    assert all_released(gateway)
