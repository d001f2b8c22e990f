"""Tests on virtual time take no real time, and lose nothing that sockets or threads do meanwhile."""

from __future__ import annotations

import asyncio
import time

import pytest

pytestmark = pytest.mark.virtual_time


async def test_hour_passes_at_once() -> None:
    """The loop's clock and ``time.monotonic`` move by an hour, the machine's by less than a minute."""
    real, began = time.perf_counter(), time.monotonic()
    await asyncio.sleep(3600)
    assert time.monotonic() - began == pytest.approx(3600, abs=0.1)
    assert time.perf_counter() - real < 60


async def test_peer_of_the_same_loop_answers_before_a_limit_expires() -> None:
    """A limit of a millisecond does not end an exchange over loopback that is ready to go on."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        for _ in range(100):
            writer.write(b"x")
            async with asyncio.timeout(0.001):
                assert await reader.read(1) == b"x"
        writer.close()
        await writer.wait_closed()


async def test_work_in_a_thread_is_waited_for() -> None:
    """No timer expires while a call in the loop's executor is under way."""
    async with asyncio.timeout(0.001):
        await asyncio.to_thread(time.sleep, 0.05)
