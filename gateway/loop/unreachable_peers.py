"""Unreachable peers: hosts that neither acknowledge what they are sent nor close the connection.

Owns: when a connection counts as lost. Must never enter: HTTP, which end of the gateway the peer is at.

TCP keep-alive probes a peer only while nothing is unacknowledged and nothing waits for its window to open.
After a power cut the kernel would send the same bytes again for a quarter of an hour. TCP_USER_TIMEOUT would
end that, but also a connection whose living peer does not read; such a peer answers each probe of its window.
"""

from __future__ import annotations

import asyncio

from gateway.loop.tcp_info import TcpInfo, tcp_info

#: Seconds for which a peer may answer nothing, and the seconds between two looks at a connection.
LIMIT, INTERVAL = 20.0, 5.0
#: Connections that are looked at in one iteration of the event loop.
AT_ONCE = 256


class UnreachablePeers:
    """Closes those of the connections of one event loop whose peers are unreachable."""

    def __init__(self) -> None:
        #: Transport -> the loop time at which its peer was first seen not to answer; None while it answers.
        self._silent_since: dict[asyncio.Transport, float | None] = {}
        self._timer: asyncio.Handle | None = None
        self._remaining: list[asyncio.Transport] = []

    def add(self, transport: asyncio.Transport) -> None:
        """Look at ``transport`` from now on."""
        self._silent_since[transport] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._look)

    def remove(self, transport: asyncio.Transport) -> None:
        """Forget ``transport``, which is closed."""
        self._silent_since.pop(transport, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._remaining:
            self._remaining = list(self._silent_since)
        now = loop.time()
        for transport in self._remaining[-AT_ONCE:]:
            if transport in self._silent_since:
                self._check(transport, now)
        del self._remaining[-AT_ONCE:]
        if self._remaining:
            self._timer = loop.call_soon(self._look)
        elif self._silent_since:
            self._timer = loop.call_later(INTERVAL, self._look)
        else:
            self._timer = None

    def _check(self, transport: asyncio.Transport, now: float) -> None:
        info = tcp_info(transport)
        since = self._silent_since[transport]
        if info is None or not _unanswered(info):
            self._silent_since[transport] = None
        elif since is None or info.since_answer < now - since:
            self._silent_since[transport] = now
        elif now - since >= LIMIT:
            transport.abort()


def _unanswered(info: TcpInfo) -> bool:
    """Return True if the kernel has sent something, even again, after the last answer of the peer."""
    return info.probes > 0 or (info.unacknowledged > 0 and info.since_sent < info.since_answer)
