"""The connections to one worker: reused while they are fresh, and none is leaked."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.errors import ConnectFailed
from gateway.upstream.connection import Connection
from gateway.upstream.idle_limit import MOST
from gateway.upstream.pool import Pool
from gateway.upstream.tls_faults import tls_fault
from tests.support.gateway import until
from tests.upstream.peer import BODY, REQUEST, Listener, Peer, answered, full_backlog, listening


@asynccontextmanager
async def pooled(listener: Listener, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Pool]:
    """A pool that knows that idle connections stay open for long."""
    pool = Pool(listener.host, listener.port, tls, 5.0)
    pool.limit.survived(5.0)
    try:
        yield pool
    finally:
        pool.close()
        await asyncio.sleep(0.001)


async def opened(pool: Pool, listener: Listener) -> tuple[Connection, Peer]:
    """Return a connection of the pool that carried one exchange and is still in use, and its peer."""
    connection = await pool.connect()
    peer = await listener.accept()
    await answered(connection, peer)
    return connection, peer


async def test_connection_that_was_returned_last_is_taken_first(listener: Listener) -> None:
    """So the surplus of a burst becomes stale and is closed."""
    async with pooled(listener) as pool:
        pairs = [await opened(pool, listener) for _ in range(3)]
        for connection, _ in pairs:
            pool.give_back(connection)
        assert repr(pool) == f"<Pool 127.0.0.1:{listener.port} idle=3>"
        assert [pool.take() for _ in range(4)] == [pairs[2][0], pairs[1][0], pairs[0][0], None]
        for connection, peer in pairs:
            await answered(connection, peer)
            pool.give_back(connection)


async def test_connection_that_is_given_back_in_the_middle_of_a_reply_is_closed(listener: Listener) -> None:
    async with pooled(listener) as pool:
        connection = await pool.connect()
        peer = await listener.accept()
        connection.send(REQUEST, BODY)
        pool.give_back(connection)
        await peer.closed()
        assert pool.idle == 0


@pytest.mark.virtual_time
async def test_idle_connection_is_used_for_3_5_s_and_then_closed(listener: Listener) -> None:
    assert MOST == 3.5
    async with pooled(listener) as pool:
        (old, old_peer), (fresh, fresh_peer) = [await opened(pool, listener) for _ in range(2)]
        pool.give_back(old)
        await asyncio.sleep(2)
        pool.give_back(fresh)
        await asyncio.sleep(1.4)
        assert pool.idle == 2 and old.usable
        await old_peer.closed()
        assert pool.idle == 1 and fresh.usable
        await asyncio.sleep(1.8)
        assert pool.take() is fresh
        await answered(fresh, fresh_peer)
        pool.give_back(fresh)
        await asyncio.sleep(3.4)
        assert fresh.usable
        await fresh_peer.closed()
        assert pool.idle == 0


async def test_stale_connection_that_was_not_swept_yet_is_not_taken(listener: Listener) -> None:
    async with pooled(listener) as pool:
        (stale, stale_peer), (fresh, _) = [await opened(pool, listener) for _ in range(2)]
        pool.give_back(fresh)
        pool.give_back(stale)
        stale.idle_since -= MOST
        assert pool.take() is fresh
        await stale_peer.closed()
        fresh.close()


async def test_connection_that_its_peer_closed_is_not_taken(listener: Listener) -> None:
    async with pooled(listener) as pool:
        (first, _), (second, second_peer) = [await opened(pool, listener) for _ in range(2)]
        for connection in (first, second):
            pool.give_back(connection)
        second_peer.close()
        await until(lambda: not second.usable)
        assert pool.take() is first and pool.idle == 0
        first.close()


async def test_closed_pool_keeps_no_connection(listener: Listener) -> None:
    async with pooled(listener) as pool:
        (idle, idle_peer), (out, out_peer) = [await opened(pool, listener) for _ in range(2)]
        pool.give_back(idle)
        pool.close()
        await idle_peer.closed()
        assert out.usable
        pool.give_back(out)
        await out_peer.closed()
        assert pool.idle == 0 and pool.take() is None


async def test_connect_over_ipv6() -> None:
    """The host has no brackets."""
    async with listening("::1") as listener, pooled(listener) as pool:
        connection, peer = await opened(pool, listener)
        pool.give_back(connection)
        assert pool.take() is connection
        connection.close()
        await peer.closed()


async def refusal(pool: Pool) -> ConnectFailed:
    with pytest.raises(ConnectFailed) as caught:
        await pool.connect()
    return caught.value


async def test_refused_connect_fails_with_its_cause_and_without_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    error = await refusal(Pool("127.0.0.1", port, None, 5.0))
    assert isinstance(error.cause, ConnectionRefusedError) and str(port) not in error.message


async def test_connect_without_an_answer_fails_after_its_timeout() -> None:
    with full_backlog() as port:
        error = await refusal(Pool("127.0.0.1", port, None, 0.05))
    assert isinstance(error.cause, TimeoutError)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "l" * 64 + ".example"])
async def test_connect_to_an_invalid_name_fails(host: str) -> None:
    await refusal(Pool(host, 80, None, 5.0))


async def test_cancelled_connect_leaves_no_connection(listener: Listener) -> None:
    async with pooled(listener, tls=ssl.create_default_context()) as pool:
        async with asyncio.TaskGroup() as group:
            connecting = group.create_task(pool.connect())
            peer = await listener.accept()  # it sends nothing: the handshake hangs
            connecting.cancel()
            await peer.closed()
        assert connecting.cancelled()


async def test_connect_cancelled_at_any_step_leaves_no_open_socket(listener: Listener) -> None:
    async with pooled(listener) as pool:
        for steps in range(12):
            async with asyncio.TaskGroup() as group:
                connecting = group.create_task(pool.connect())
                for _ in range(steps):
                    await asyncio.sleep(0)
                connecting.cancel()
            if not connecting.cancelled():
                connecting.result().close()
        # Each connection that was accepted is closed at the other end as well.
        for _ in range(12):
            try:
                async with asyncio.timeout(0.02):
                    peer = await listener.accept()
            except TimeoutError:
                break
            await peer.closed()


@pytest.mark.parametrize(
    ("reason", "given"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "it wants a client certificate, and was shown none"),
        ("SOMETHING_ELSE", "TLS failed: something else"),
        (None, "TLS failed: "),
    ],
)
def test_reason_of_a_failed_handshake_is_given_in_plain_words(reason: str | None, given: str) -> None:
    """Real ones: tests/security/test_tls_workers.py."""
    error = ssl.SSLError(1, "[SSL] something")
    error.reason = reason  # type: ignore[assignment]
    assert str(tls_fault(error)).startswith(given)
    assert tls_fault(TimeoutError()) is None
