"""Tests on virtual time lose nothing that sockets or threads do meanwhile."""

from __future__ import annotations

import asyncio
import time

import pytest

pytestmark = pytest.mark.virtual_time


async def test_limit_does_not_expire_while_a_peer_of_the_same_loop_or_a_thread_works() -> None:
    """An exchange over loopback that is ready to go on, and a call in the loop's executor."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        for _ in range(100):
            writer.write(b"x")
            async with asyncio.timeout(0.001):
                assert await reader.read(1) == b"x"
        writer.close()
    async with asyncio.timeout(0.001):
        await asyncio.to_thread(time.sleep, 0.05)
