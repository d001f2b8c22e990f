"""The disconnect of a client whose socket is not read.

Owns: the timer and the query of the kernel. Must never enter: what follows from a disconnect.
"""

from __future__ import annotations

import asyncio
import select
from typing import Protocol

#: Seconds between two polls.
HANGUP_INTERVAL = 0.1


class PolledConnection(Protocol):
    """The connection, as far as the poller needs it."""

    def needs_hangup_poll(self) -> bool:
        """Return True as long as the event loop would not report a disconnect by itself."""
        ...

    def on_hangup(self) -> None:
        """Act on the disconnect."""
        ...


class HangupPoller:
    """Asks the kernel whether the client closed its connection.

    The event loop learns it by reading from the socket. It does not read while requests are pipelined faster
    than they are served, and over TLS it does not report a FIN while written bytes wait to be read.
    """

    def __init__(self, connection: PolledConnection) -> None:
        self._connection: PolledConnection | None = connection
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport) -> None:
        """Ask from now on, as long as the connection needs it."""
        if self._timer is None and self._connection is not None:
            self._transport = transport
            self._schedule()

    def stop(self) -> None:
        """Ask no more, and break the reference cycle with the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._connection = self._transport = None

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HANGUP_INTERVAL, self._poll)

    def _poll(self) -> None:
        self._timer = None
        connection, transport = self._connection, self._transport
        if connection is None or transport is None or transport.is_closing():
            return
        sock = transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLRDHUP)
        if poll.poll(0):
            connection.on_hangup()
        elif connection.needs_hangup_poll():
            self._schedule()
