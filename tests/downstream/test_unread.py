"""Clients that do not read their replies: what is held for them, how long. Through a whole gateway."""

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


async def rest_of(client: RawClient, piece: int = 2**20) -> int:
    """Bytes that still come until the connection ends, or is reset."""
    size = 0
    with suppress(ConnectionResetError):
        async with asyncio.timeout(20):
            while data := await client.reader.read(piece):
                size += len(data)
    return size


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_reply_that_is_left_unread_is_cut_and_its_worker_told_to_stop(
    kind: str, stream: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Visibly, counted and logged as what it was; nothing of it is held any more."""
    settings = {"unread_timeout_secs": 0.3, "access_log": True}
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, **settings) as gateway:
        event = b"data: {}\n\n" * 4000
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        sim.behave(Raw(data=head + event * 1000, close=False) if stream else HUGE)
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


def events(size: int) -> Raw:
    """A stream of 40 MB in events of ``size``, which does not end."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    event = b'data: {"text":"' + b"a" * size + b'"}\n\n'
    return Raw(data=head + event * (40_000_000 // len(event)), close=False)


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
async def test_reply_that_nobody_reads_is_held_to_a_mebibyte_and_a_half_or_one_event(
    kind: str, reply: Raw | Reply, most: int
) -> None:
    """In all buffers from the worker's socket to the client's."""
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


async def test_reply_that_is_read_slowly_or_with_pauses_is_not_cut() -> None:
    """Each pause is shorter than the limit, all of it takes longer."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, unread_timeout_secs=0.6) as gateway:
        sim.behave(HUGE)
        async with raw_client(gateway, limit=4096) as client:
            client.request("/generate", SMALL)
            await client.head()
            async with asyncio.timeout(20):
                for _ in range(4):
                    await asyncio.sleep(0.25)
                    await client.reader.readexactly(len(HUGE.body) // 4)
            assert await limit_hits(gateway) == {}


async def test_requests_sent_ahead_of_replies_that_nobody_reads_hold_nothing_for_ever() -> None:
    """Nor does a connection that is to be closed once its reply was read."""
    async with SimServer("sglang", SimConfig()) as sim:
        async with rig(sim.url, unread_timeout_secs=0.2, keep_alive_timeout_secs=0.2) as gateway:
            for last in (b"", b"connection: close\r\n"):
                for _ in range(15):
                    sim.behave(Reply(body=b'{"text":"' + b"a" * 1_000_000 + b'"}'))
                async with raw_client(gateway, limit=4096) as client:
                    before = (await limit_hits(gateway)).get("unread", 0)
                    head = HEAD + b"content-length: %d\r\n" % len(SMALL)
                    client.writer.write(14 * (head + b"\r\n" + SMALL) + head + last + b"\r\n" + SMALL)

                    async def cut(before: int = before) -> bool:
                        return (await limit_hits(gateway)).get("unread", 0) > before

                    await eventually(cut)
                    assert await rest_of(client) < 15_000_000
                    assert all_released(gateway)
