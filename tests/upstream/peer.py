"""The worker's end of a connection as a bare socket: a test decides what is sent, when, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

from gateway.upstream.connection import Connection
from gateway.upstream.read_buffer import READ_SIZE

REQUEST = b"POST /generate HTTP/1.1\r\nhost: worker\r\ncontent-length: 2\r\n\r\n"
BODY = b"{}"


class Peer:
    """An accepted connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        self._loop = asyncio.get_running_loop()

    async def request(self, size: int = len(REQUEST + BODY)) -> bytes:
        """Return the next ``size`` bytes from the gateway."""
        parts: list[bytes] = []
        while size:
            part = await self._loop.sock_recv(self.sock, min(size, 1 << 20))
            assert part, "the gateway closed the connection"
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            await self._loop.sock_sendall(self.sock, piece)

    async def closed(self) -> None:
        """Read until the gateway has closed its end, then close."""
        try:
            while await self._loop.sock_recv(self.sock, 1 << 16):
                pass
        except ConnectionError:
            pass
        self.close()

    def close(self) -> None:
        """Send a FIN at once (a RST if there are unread bytes)."""
        self.sock.close()

    def finish(self) -> None:
        """Send a FIN and go on reading."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Send a RST at once."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Listener:
    """A listening socket on the loopback."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        self.host, self.port = sock.getsockname()[:2]
        self._peers: list[Peer] = []
        self._connections: list[Connection] = []

    async def accept(self) -> Peer:
        sock, _ = await asyncio.get_running_loop().sock_accept(self.sock)
        peer = Peer(sock)
        self._peers.append(peer)
        return peer

    async def connect(self, **options: Any) -> Connection:
        """Return the gateway's end of a new connection."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(connection_made, self.host, self.port, **options)
        self._connections.append(connection)
        return connection

    async def pair(self) -> tuple[Connection, Peer]:
        """Return both ends of a new connection."""
        return await self.connect(), await self.accept()

    async def asked(self) -> tuple[Connection, Peer]:
        """Return both ends of a new connection whose peer has read one request."""
        connection, peer = await self.pair()
        connection.send(REQUEST, BODY)
        await peer.request()
        return connection, peer

    async def close(self) -> None:
        """Close everything and let the loop notice it."""
        for connection in self._connections:
            connection.close()
        await asyncio.sleep(0.001)
        self.sock.close()
        for peer in self._peers:
            peer.close()


@contextmanager
def full_backlog(host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Listen with a full backlog, so that no SYN is answered; give the port."""
    with ExitStack() as sockets:
        server = sockets.enter_context(socket.socket())
        server.bind((host, port))
        server.listen(0)
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@asynccontextmanager
async def listening(host: str = "127.0.0.1") -> AsyncIterator[Listener]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = Listener(socket.create_server((host, 0), family=family))
    try:
        yield listener
    finally:
        await listener.close()


def connection_made() -> Connection:
    """Return the protocol of a new connection."""
    return Connection(bytearray(READ_SIZE))


def deliver(connection: Connection, data: bytes) -> None:
    """Let the connection read ``data`` in as few reads as possible."""
    while data:
        buffer = connection.get_buffer(len(data))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


async def body(connection: Connection) -> bytes:
    """Return the complete body of the reply."""
    parts: list[bytes] = []
    while part := await connection.read():
        parts.append(part)
    return b"".join(parts)


async def served(connection: Connection, peer: Peer, *, times: int = 1) -> None:
    """Carry complete exchanges over ``connection`` and prepare it for another."""
    for _ in range(times):
        await answered(connection, peer)
        assert connection.recycle()


async def answered(connection: Connection, peer: Peer) -> None:
    """Carry a complete exchange over ``connection``."""
    connection.send(REQUEST, BODY)
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    await connection.head()
    assert await body(connection) == b"ok"
