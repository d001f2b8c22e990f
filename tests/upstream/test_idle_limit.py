"""How long an idle connection is used: as long as the worker is known to keep one open, less a margin."""

from __future__ import annotations

import asyncio

import pytest

from gateway.upstream.connection import Connection
from gateway.upstream.idle_limit import FIRST, MOST, IdleLimit
from gateway.upstream.pool import Pool
from tests.support.gateway import until
from tests.upstream.peer import BODY, REQUEST, Listener, Peer, body


@pytest.mark.parametrize(
    ("header", "most"),
    [
        (b"timeout=3", 2.0),
        (b"timeout=5, max=100", MOST),
        (b"max=100, timeout=2", 1.0),
        (b"TIMEOUT = 1", 0.5),
        (b"timeout=0", 0.0),
        (b"max=5", MOST),
        (b"mytimeout=1", MOST),
        (b"timeout=x", MOST),
        (b"", MOST),
    ],
)
def test_announced_timeout_bounds_the_limit(header: bytes, most: float) -> None:
    limit = IdleLimit()
    limit.announced(header)
    limit.survived(1000)
    assert limit.seconds == most


def test_limit_grows_with_what_a_connection_survives_and_shrinks_with_each_end() -> None:
    limit = IdleLimit()
    assert (limit.seconds, limit.settled) == (FIRST, False)
    limit.survived(2)
    assert limit.seconds == 1.5
    limit.survived(1)
    assert limit.seconds == 1.5
    limit.ended(1)
    assert limit.seconds == 0.75
    limit.ended(3)
    assert limit.seconds == 0.75
    limit.ended(0.1)
    assert limit.seconds == pytest.approx(0.05)
    limit.ended(0.01)
    assert limit.seconds == 0
    limit.survived(100)
    assert (limit.seconds, limit.settled) == (MOST, True)


class Client:
    """Sends requests through a pool, and answers them."""

    def __init__(self, listener: Listener) -> None:
        self.pool = Pool(listener.host, listener.port, None, 5.0)
        self.peers: dict[Connection, Peer] = {}
        self._listener = listener

    async def request(self, *, head: bytes = b"") -> Connection:
        """Send one request, on an idle connection if there is one; return the connection, idle again."""
        connection = self.pool.take()
        if connection is None:
            connection = await self.pool.connect()
            self.peers[connection] = await self._listener.accept()
        peer = self.peers[connection]
        connection.send(REQUEST, BODY)
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n%bcontent-length: 2\r\n\r\nok" % head)
        await connection.head()
        assert await body(connection) == b"ok"
        self.pool.give_back(connection)
        return connection


@pytest.mark.virtual_time
async def test_connection_that_was_idle_for_too_long_shows_how_long_others_may_be(listener: Listener) -> None:
    client = Client(listener)
    first = await client.request()
    await asyncio.sleep(0.3)
    assert await client.request() is first
    await asyncio.sleep(1)
    second = await client.request()  # nobody knows yet whether the worker closes one after a second
    assert second is not first and first.usable
    await asyncio.sleep(0.7)
    assert await client.request() is second  # the first one, idle for 1.7 s, is still open
    await asyncio.sleep(4)
    await client.request()
    assert client.pool.limit.settled and not first.usable
    client.pool.close()


@pytest.mark.virtual_time
async def test_closed_pool_leaves_no_connection_open(listener: Listener) -> None:
    """Not even the one that is kept to learn from."""
    client = Client(listener)
    first = await client.request()
    await asyncio.sleep(1)
    assert await client.request() is not first and first.usable
    client.pool.close()
    await asyncio.sleep(0)
    assert not first.usable


@pytest.mark.virtual_time
async def test_end_of_an_idle_connection_shortens_the_limit_until_the_worker_dies(listener: Listener) -> None:
    client = Client(listener)
    client.pool.limit.survived(5)
    connection = await client.request()
    await asyncio.sleep(1)
    client.peers[connection].finish()
    await until(lambda: not connection.usable)
    assert client.pool.limit.seconds == pytest.approx(0.75, abs=0.01)
    client.pool.forget_idle_limit()
    assert client.pool.limit.seconds == FIRST
    client.pool.close()


async def test_keep_alive_header_of_a_reply_bounds_the_limit(listener: Listener) -> None:
    client = Client(listener)
    await client.request(head=b"keep-alive: timeout=2\r\n")
    client.pool.limit.survived(100)
    assert client.pool.limit.seconds == 1
    client.pool.close()
