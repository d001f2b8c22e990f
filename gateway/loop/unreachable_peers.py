"""Unreachable peers: hosts that neither acknowledge what they are sent nor close the connection.

Owns: when a connection counts as lost. Must never enter: HTTP, which end of the gateway the peer is at.

TCP keep-alive probes a peer only while nothing is unacknowledged. After a power cut the kernel would send the
same bytes again for a quarter of an hour. TCP_USER_TIMEOUT would end that, but also a connection whose living
peer does not read; such a peer acknowledges what it was sent, and nothing more is sent to it.
"""

from __future__ import annotations

import asyncio

from gateway.loop.tcp_info import tcp_info

#: Seconds for which nothing may be acknowledged, and the seconds between two looks at a connection.
LIMIT, INTERVAL = 20.0, 5.0
#: Connections that are looked at in one iteration of the event loop.
AT_ONCE = 256


class UnreachablePeers:
    """Closes those of the connections of one event loop whose peers are unreachable."""

    def __init__(self) -> None:
        #: Transport -> bytes acknowledged, and the loop time since when more is sent but not acknowledged.
        self._stuck_since: dict[asyncio.Transport, tuple[int, float]] = {}
        self._timer: asyncio.Handle | None = None
        self._remaining: list[asyncio.Transport] = []

    def add(self, transport: asyncio.Transport) -> None:
        """Look at ``transport`` from now on."""
        self._stuck_since[transport] = (-1, 0.0)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._look)

    def remove(self, transport: asyncio.Transport) -> None:
        """Forget ``transport``, which is closed."""
        self._stuck_since.pop(transport, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._remaining:
            self._remaining = list(self._stuck_since)
        now = loop.time()
        for transport in self._remaining[-AT_ONCE:]:
            if transport in self._stuck_since:
                self._check(transport, now)
        del self._remaining[-AT_ONCE:]
        if self._remaining:
            self._timer = loop.call_soon(self._look)
        elif self._stuck_since:
            self._timer = loop.call_later(INTERVAL, self._look)
        else:
            self._timer = None

    def _check(self, transport: asyncio.Transport, now: float) -> None:
        info = tcp_info(transport)
        if info is None or not info.unacknowledged:
            self._stuck_since[transport] = (-1, 0.0)
            return
        acknowledged, since = self._stuck_since[transport]
        if info.acknowledged != acknowledged:
            self._stuck_since[transport] = (info.acknowledged, now)
        elif now - since >= LIMIT:
            transport.abort()
