"""The connections to one worker: reused while fresh, never stale, and none is leaked."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trustme

from gateway.errors import ConnectFailed
from gateway.upstream import pool as module
from gateway.upstream.connection import Connection
from gateway.upstream.pool import MAX_IDLE_SECONDS, Pool
from tests.support.gateway import until
from tests.upstream.peer import BODY, REQUEST, Listener, Peer, body, listening


@asynccontextmanager
async def pooled(listener: Listener, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Pool]:
    pool = Pool(listener.host, listener.port, tls, 5.0)
    try:
        yield pool
    finally:
        pool.close()
        await asyncio.sleep(0.001)


async def opened(pool: Pool, listener: Listener) -> tuple[Connection, Peer]:
    """A connection of the pool that has carried one whole reply and is still out, and its peer."""
    connection = await pool.connect()
    peer = await listener.accept()
    await answered(connection, peer)
    return connection, peer


async def answered(connection: Connection, peer: Peer) -> None:
    connection.send(REQUEST, BODY)
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    await connection.head()
    assert await body(connection) == b"ok"


async def test_take_from_an_empty_pool(listener: Listener) -> None:
    """Nothing idle: nothing is handed out."""
    async with pooled(listener) as pool:
        assert pool.take() is None
        assert pool.idle == 0


async def test_last_returned_is_taken_first(listener: Listener) -> None:
    """The freshest connection is used, so that a burst's surplus grows stale and goes."""
    async with pooled(listener) as pool:
        pairs = [await opened(pool, listener) for _ in range(3)]
        for connection, _ in pairs:
            pool.give_back(connection)
        assert pool.idle == 3
        assert [pool.take() for _ in range(4)] == [pairs[2][0], pairs[1][0], pairs[0][0], None]
        for connection, peer in pairs:
            await answered(connection, peer)
            pool.give_back(connection)


async def test_one_connection_carries_many_exchanges(listener: Listener) -> None:
    """A connection goes round for as long as it is used."""
    async with pooled(listener) as pool:
        connection, peer = await opened(pool, listener)
        for _ in range(50):
            pool.give_back(connection)
            assert pool.take() is connection
            await answered(connection, peer)
        pool.give_back(connection)


async def test_unfinished_connection_is_closed_not_kept(listener: Listener) -> None:
    """A connection given back in the middle of a reply is closed."""
    async with pooled(listener) as pool:
        connection = await pool.connect()
        peer = await listener.accept()
        connection.send(REQUEST, BODY)
        pool.give_back(connection)
        assert pool.idle == 0
        await peer.left()


async def test_connection_that_was_idle_too_long(listener: Listener) -> None:
    """What was idle for 3.5 s is not used again, though nobody has closed it yet; what was not, is."""
    assert MAX_IDLE_SECONDS == 3.5
    async with pooled(listener) as pool:
        (old, old_peer), (fresh, _) = [await opened(pool, listener) for _ in range(2)]
        pool.give_back(fresh)
        pool.give_back(old)
        old.idle_since -= MAX_IDLE_SECONDS
        fresh.idle_since -= MAX_IDLE_SECONDS - 0.5
        assert pool.take() is fresh
        await old_peer.left()
        assert pool.idle == 0
        fresh.close()


async def test_idle_connections_close_by_themselves(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to come for a connection that has been idle for too long."""
    monkeypatch.setattr(module, "MAX_IDLE_SECONDS", 0.03)
    async with pooled(listener) as pool:
        pairs = [await opened(pool, listener) for _ in range(3)]
        for connection, _ in pairs:
            pool.give_back(connection)
            await asyncio.sleep(0.01)
        for _, peer in pairs:
            await peer.left()
        assert pool.idle == 0


async def test_sweep_spares_what_is_fresh(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep that closes an old connection leaves a later one, and comes again for it."""
    monkeypatch.setattr(module, "MAX_IDLE_SECONDS", 0.04)
    async with pooled(listener) as pool:
        (old, old_peer), (fresh, fresh_peer) = [await opened(pool, listener) for _ in range(2)]
        pool.give_back(old)
        pool.give_back(fresh)
        fresh.idle_since += 0.1
        await old_peer.left()
        assert fresh.usable
        assert pool.idle == 1
        await fresh_peer.left()


async def test_connection_closed_by_its_peer_while_idle(listener: Listener) -> None:
    """A connection known to be closed is not handed out; the next one is."""
    async with pooled(listener) as pool:
        (first, _), (second, second_peer) = [await opened(pool, listener) for _ in range(2)]
        pool.give_back(first)
        pool.give_back(second)
        second_peer.close()
        await until(lambda: not second.usable)
        assert pool.take() is first
        assert pool.idle == 0
        first.close()


async def test_close_ends_what_is_idle_and_what_comes_back(listener: Listener) -> None:
    """A closed pool keeps nothing; a connection in use is left alone until it is given back."""
    async with pooled(listener) as pool:
        (idle, idle_peer), (out, out_peer) = [await opened(pool, listener) for _ in range(2)]
        pool.give_back(idle)
        pool.close()
        await idle_peer.left()
        assert out.usable
        pool.give_back(out)
        await out_peer.left()
        assert pool.idle == 0
        assert pool.take() is None
        pool.close()


async def test_pool_shows_its_count(listener: Listener) -> None:
    """Its repr names the worker and how many connections are idle."""
    async with pooled(listener) as pool:
        connection, _ = await opened(pool, listener)
        pool.give_back(connection)
        assert repr(pool) == f"<Pool 127.0.0.1:{listener.port} idle=1>"


# -- connecting


async def test_connect_over_ipv6() -> None:
    """A host is given without brackets."""
    async with listening("::1") as listener, pooled(listener) as pool:
        connection, peer = await opened(pool, listener)
        pool.give_back(connection)
        assert pool.take() is connection
        connection.close()
        await peer.left()


async def refusal(pool: Pool) -> ConnectFailed:
    with pytest.raises(ConnectFailed) as caught:
        await pool.connect()
    return caught.value


async def test_connect_refused() -> None:
    """Nobody listens: ConnectFailed, with the reason as its cause and no address in its text."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    error = await refusal(Pool("127.0.0.1", port, None, 5.0))
    assert isinstance(error.cause, ConnectionRefusedError)
    assert str(port) not in error.message


@contextmanager
def full_backlog() -> Iterator[int]:
    """The port of a listener whose backlog is full, so that it answers no SYN."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(server.getsockname())
        try:
            yield server.getsockname()[1]
        finally:
            for each in waiting:
                each.close()


async def test_connect_that_takes_too_long() -> None:
    """A worker that does not answer the SYN in time could not be reached."""
    with full_backlog() as port:
        error = await refusal(Pool("127.0.0.1", port, None, 0.05))
    assert isinstance(error.cause, TimeoutError)


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "l" * 64 + ".example"])
async def test_connect_to_a_name_that_is_none(host: str) -> None:
    """A name that cannot be resolved, or cannot even be one, is a worker that cannot be reached."""
    await refusal(Pool(host, 80, None, 5.0))


async def test_connect_cancelled(listener: Listener) -> None:
    """A client that leaves while its worker is being connected leaves no connection behind."""
    async with pooled(listener, tls=ssl.create_default_context()) as pool:
        async with asyncio.TaskGroup() as group:
            connecting = group.create_task(pool.connect())
            peer = await listener.accept()  # and says nothing: the handshake hangs
            connecting.cancel()
            await peer.left()
        assert connecting.cancelled()


async def test_connect_cancelled_in_the_moment_it_succeeds(listener: Listener) -> None:
    """Whatever the moment, a cancelled connect ends in a closed socket or a connection in hand."""
    async with pooled(listener) as pool:
        for steps in range(12):
            async with asyncio.TaskGroup() as group:
                connecting = group.create_task(pool.connect())
                for _ in range(steps):
                    await asyncio.sleep(0)
                connecting.cancel()
            if not connecting.cancelled():
                connecting.result().close()
        # Whatever came through is closed at its other end as well.
        for _ in range(12):
            try:
                async with asyncio.timeout(0.02):
                    peer = await listener.accept()
            except TimeoutError:
                break
            await peer.left()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@asynccontextmanager
async def tls_listener(authority: trustme.CA, name: str) -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_tls_to_a_known_worker(authority: trustme.CA) -> None:
    """A certificate for the worker's address, from an authority we trust, is taken."""
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    async with tls_listener(authority, "127.0.0.1") as port:
        (await Pool("127.0.0.1", port, ours, 5.0).connect()).close()


@pytest.mark.parametrize("fault", ["unknown authority", "other name", "not tls"])
async def test_tls_that_cannot_be_trusted(authority: trustme.CA, listener: Listener, fault: str) -> None:
    """A worker whose certificate does not hold, or that speaks no TLS, could not be reached."""
    ours = ssl.create_default_context()
    if fault != "unknown authority":
        authority.configure_trust(ours)
    async with tls_listener(authority, "localhost" if fault == "other name" else "127.0.0.1") as port:
        if fault != "not tls":
            error = await refusal(Pool("127.0.0.1", port, ours, 5.0))
            assert isinstance(error.cause, ssl.SSLCertVerificationError)
            return
        async with asyncio.TaskGroup() as group:
            refused = group.create_task(refusal(Pool(listener.host, listener.port, ours, 5.0)))
            peer = await listener.accept()
            await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await peer.left()
        assert isinstance(refused.result().cause, ssl.SSLError)
