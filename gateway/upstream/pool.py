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
from gateway.formats.contract import header
from gateway.limits import DEFAULT_HEAD, HeadLimits
from gateway.loop.sockets import is_shortage
from gateway.loop.unreachable_peers import UnreachablePeers
from gateway.loop.write_batch import WriteBatch
from gateway.upstream.connection import Connection
from gateway.upstream.idle_limit import IdleLimit
from gateway.upstream.read_buffer import READ_SIZE
from gateway.upstream.resolver import Resolver, is_address

#: Seconds between the attempts to connect to the addresses of one name (RFC 8305, section 5).
ATTEMPT_DELAY = 0.25


class Pool:
    """Connections to ``host`` (without brackets) and ``port``. ``connect_timeout`` is in seconds.

    All pools of an event loop share ``resolver``, ``write_batch``, ``read_buffer`` (READ_SIZE bytes) and
    ``unreachable_peers``.
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
        unreachable_peers: UnreachablePeers | None = None,
        own_lines: bytes = b"",
    ) -> None:
        #: The header lines of every request to the worker (gateway.upstream.encode).
        self.own_lines = own_lines
        self._write_batch = write_batch or WriteBatch()
        self._resolver = resolver or Resolver()
        self._host = host
        self._port = port
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._head_limits = head_limits
        self._read_buffer = read_buffer or bytearray(READ_SIZE)
        self._unreachable_peers = unreachable_peers or UnreachablePeers()
        #: The addresses of a name may change.
        self._named = not is_address(host)
        #: The address that accepted a connection last; it is tried first.
        self._working: str | None = None
        self._idle: list[Connection] = []
        #: A connection that was idle for too long to be used: it shows when the worker closes it.
        self._spare: Connection | None = None
        #: How long connections may be idle.
        self.limit = IdleLimit()
        self._heard_keep_alive = False
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pool {self._host}:{self._port} idle={len(self._idle)}>"

    @property
    def address(self) -> str | None:
        """The IP address that accepted a connection last, of those that the host has; None: none did yet."""
        return self._working

    @property
    def idle(self) -> int:
        return len(self._idle)

    def forget_idle_limit(self) -> None:
        """Learn anew how long connections may be idle: another process serves the address."""
        self.limit = IdleLimit()
        self._heard_keep_alive = False

    def take(self) -> Connection | None:
        """Return a fresh idle connection to an address that the worker's name has now, or None."""
        now = time.monotonic()
        if self._spare is not None:
            self._watch_spare(now)
        oldest = now - self.limit.seconds
        current = self._resolver.current(self._host) if self._named else None
        while self._idle:
            connection = self._idle.pop()
            fresh = connection.idle_since > oldest and connection.usable
            if fresh and (current is None or connection.address in current):
                return connection
            self._put_aside(connection)
        return None

    def take_to(self, address: str) -> Connection | None:
        """Return a fresh idle connection to exactly ``address``, or None."""
        oldest = time.monotonic() - self.limit.seconds
        for connection in reversed(self._idle):
            if connection.address == address and connection.idle_since > oldest and connection.usable:
                self._idle.remove(connection)
                return connection
        return None

    async def connect(self, address: str | None = None) -> Connection:
        """Open a new connection, to ``address`` or else to one of the worker's addresses.

        Raises ConnectFailed and OutOfSockets; nothing was sent then.
        """
        try:
            async with asyncio.timeout(self._connect_timeout):
                if address is not None:
                    return await self._connect(address)
                return await self._connect_to(await self._resolver.resolve(self._host))
        except (OSError, TimeoutError, ValueError) as error:
            if is_shortage(error):
                raise OutOfSockets("the gateway has no socket left at the moment", cause=error) from error
            raise ConnectFailed("the worker could not be reached", cause=error) from error

    async def _connect_to(self, addresses: Sequence[str]) -> Connection:
        """Connect to the first of ``addresses`` that accepts, the one that accepted last time first.

        An address that does not answer delays the next one by ATTEMPT_DELAY only. Raises OSError.
        """
        if len(addresses) == 1:
            connection = await self._connect(addresses[0])
            self._working = connection.address
            return connection
        waiting = sorted(addresses, key=lambda address: address != self._working)
        attempts: set[asyncio.Task[Connection]] = set()
        try:
            while True:
                if waiting:
                    attempts.add(asyncio.get_running_loop().create_task(self._connect(waiting.pop(0))))
                delay = ATTEMPT_DELAY if waiting else None
                done, _ = await asyncio.wait(attempts, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
                attempts -= done
                failures = [each.exception() for each in done]
                if None in failures:
                    connected = [each.result() for each in done if each.exception() is None]
                    for surplus in connected[1:]:
                        surplus.close()
                    self._working = connected[0].address
                    return connected[0]
                if not attempts and not waiting:
                    raise failures[0] or OSError("no address of the worker answered")
        finally:
            for each in attempts:
                each.cancel()
                each.add_done_callback(_close_late)

    async def _connect(self, address: str) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(
                self._read_buffer,
                self._write_batch,
                self._head_limits,
                self._unreachable_peers,
                self._on_idle_end,
            ),
            address,
            self._port,
            ssl=self._tls,
            server_hostname=self._host if self._tls else None,
        )
        connection.address = address
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep ``connection`` if it can carry another request; close it otherwise."""
        if not self._heard_keep_alive:
            self._read_keep_alive(connection)
        if not connection.recycle():
            return
        if self._closed:
            return connection.close()
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._sweep is None:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(max(self.limit.seconds, 0.05), self._drop_stale)

    def close(self) -> None:
        """Close all idle connections; one in use is closed when it is given back."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        while self._idle:
            self._idle.pop().close()
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _drop_stale(self) -> None:
        loop, now = asyncio.get_running_loop(), time.monotonic()
        self._watch_spare(now)
        oldest = now - self.limit.seconds
        fresh = []
        for connection in self._idle:
            if connection.usable and connection.idle_since > oldest:
                fresh.append(connection)
            else:
                self._put_aside(connection)
        self._idle = fresh
        # The list is in order of return, so its first entry is the next one to become stale.
        self._sweep = None
        if self._idle:
            delay = self._idle[0].idle_since - oldest
            self._sweep = loop.call_later(max(delay, 0.05), self._drop_stale)

    def _put_aside(self, connection: Connection) -> None:
        """Close a connection that is not used any more, unless it can show how long the others live."""
        if self._spare is None and connection.usable and not (self.limit.settled or self._closed):
            self._spare = connection
        else:
            connection.close()

    def _watch_spare(self, now: float) -> None:
        spare = self._spare
        if spare is None:
            return
        if spare.usable:
            self.limit.survived(now - spare.idle_since)
        if self.limit.settled or not spare.usable:
            self._spare = None
            spare.close()

    def _on_idle_end(self, connection: Connection) -> None:
        """The worker closed an idle connection: after its limit, unless an older one is still open."""
        oldest = self._spare or (self._idle[0] if self._idle else None)
        older = oldest is not None and oldest.usable and oldest.idle_since < connection.idle_since
        if connection.idle_since and not older:
            self.limit.ended(time.monotonic() - connection.idle_since)

    def _read_keep_alive(self, connection: Connection) -> None:
        if (head := connection.reply_head) is not None:
            self._heard_keep_alive = True
            if (value := header(head.headers, b"keep-alive")) is not None:
                self.limit.announced(value)


def _close_late(attempt: asyncio.Task[Connection]) -> None:
    """Close the connection of an attempt that succeeded although it was cancelled."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
