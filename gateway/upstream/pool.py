"""The connections to one worker: reused while they are fresh, opened when there is none.

Owns: reuse and connecting. Must never enter: a dialect, the choice of a worker, a limit on the number of
connections (the number of exchanges bounds it).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence

from gateway.errors import ConnectFailed, OutOfSockets
from gateway.limits import DEFAULT_HEAD, HeadLimits
from gateway.loop.sockets import is_shortage
from gateway.loop.write_batch import WriteBatch
from gateway.upstream.connection import Connection
from gateway.upstream.read_buffer import READ_SIZE
from gateway.upstream.resolver import Resolver

#: Seconds after which an idle connection is not used again. Engines are served by uvicorn, which closes one
#: that was idle for 5 s (its timeout_keep_alive).
MAX_IDLE_SECONDS = 3.5


class Pool:
    """Connections to ``host`` (without brackets) and ``port``. ``connect_timeout`` is in seconds.

    All pools of an event loop share ``resolver``, ``write_batch`` and ``read_buffer`` (READ_SIZE bytes).
    """

    def __init__(  # noqa: PLR0913 - its own values, and the shared objects
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        connect_timeout: float,
        resolver: Resolver | None = None,
        write_batch: WriteBatch | None = None,
        head_limits: HeadLimits = DEFAULT_HEAD,
        read_buffer: bytearray | None = None,
    ) -> None:
        self._write_batch = write_batch or WriteBatch()
        self._resolver = resolver or Resolver()
        self._host = host
        self._port = port
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._head_limits = head_limits
        self._read_buffer = read_buffer or bytearray(READ_SIZE)
        self._idle: list[Connection] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pool {self._host}:{self._port} idle={len(self._idle)}>"

    @property
    def idle(self) -> int:
        return len(self._idle)

    def take(self) -> Connection | None:
        """Return a fresh idle connection, or None."""
        oldest = time.monotonic() - MAX_IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    async def connect(self) -> Connection:
        """Open a new connection. Raises ConnectFailed and OutOfSockets; nothing was sent then."""
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self._connect_to(await self._resolver.resolve(self._host))
        except (OSError, TimeoutError, ValueError) as error:
            if is_shortage(error):
                raise OutOfSockets("the gateway has no socket left at the moment", cause=error) from error
            raise ConnectFailed("the worker could not be reached", cause=error) from error

    async def _connect_to(self, addresses: Sequence[str]) -> Connection:
        """Connect to the first of ``addresses`` that accepts. Raises OSError.

        A machine that is gone does not answer, so each address but the last has only its share of the time.
        """
        loop = asyncio.get_running_loop()
        *others, last = addresses
        for address in others:
            try:
                async with asyncio.timeout(self._connect_timeout / len(addresses)):
                    return await self._connect(loop, address)
            except OSError:
                continue  # a name may have addresses on which nothing listens
        return await self._connect(loop, last)

    async def _connect(self, loop: asyncio.AbstractEventLoop, address: str) -> Connection:
        _, connection = await loop.create_connection(
            lambda: Connection(self._read_buffer, self._write_batch, self._head_limits),
            address,
            self._port,
            ssl=self._tls,
            server_hostname=self._host if self._tls else None,
        )
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep ``connection`` if it can carry another request; close it otherwise."""
        if not connection.recycle():
            return
        if self._closed:
            return connection.close()
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._sweep is None:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(MAX_IDLE_SECONDS, self._drop_stale)

    def close(self) -> None:
        """Close all idle connections; one in use is closed when it is given back."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        while self._idle:
            self._idle.pop().close()

    def _drop_stale(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = time.monotonic() - MAX_IDLE_SECONDS
        fresh = []
        for connection in self._idle:
            if connection.usable and connection.idle_since > oldest:
                fresh.append(connection)
            else:
                connection.close()
        self._idle = fresh
        # The list is in order of return, so its first entry is the next one to become stale.
        self._sweep = None
        if self._idle:
            delay = self._idle[0].idle_since - oldest
            self._sweep = loop.call_later(max(delay, 0.05), self._drop_stale)
