"""The limits on client connections.

Owns: the values. Must never enter: a socket, a timer, what happens when a limit is exceeded.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.downstream.cross_origin import CrossOrigin
from gateway.limits import DEFAULT_HEAD, HeadLimits

#: Connections over the limit that are still served on routes which need no worker: health, metrics.
RESERVED_CONNECTIONS = 32
#: Seconds for which such a connection is kept without a request.
OVER_LIMIT_IDLE_SECONDS = 5.0
#: How often a connection is checked within the shortest of its times.
_CHECKS = 4


class ClientLimits(NamedTuple):
    """Limits on what a client may do. Times are in seconds, ``body_rate`` is in bytes per second.

    ``unread_seconds`` None: no limit. ``connections`` is how many there may be at once, None: any number. A
    connection beyond the limit and RESERVED_CONNECTIONS gets a reply with ``overload_status`` and is closed:
    at once if as many as ``files`` files are open. ``cross_origin`` None: no page of another origin may read
    replies in a browser.
    """

    head: HeadLimits = DEFAULT_HEAD
    head_seconds: float = 30.0
    body_seconds: float = 60.0
    body_rate: int = 240
    unread_seconds: float | None = 1800.0
    idle_seconds: float = 75.0
    connections: int | None = None
    overload_status: int = 503
    files: int | None = None
    cross_origin: CrossOrigin | None = None

    @property
    def interval(self) -> float:
        """Return the seconds between two checks of a connection."""
        times = (self.head_seconds, self.body_seconds, self.idle_seconds, self.unread_seconds)
        return min(time for time in times if time is not None) / _CHECKS

    @property
    def body_step(self) -> int:
        """Return the bytes of a body, at least one, that have to arrive within ``body_seconds``."""
        return max(1, int(self.body_rate * self.body_seconds))

    def over_connection_limit(self) -> ClientLimits:
        """Return the limits for a connection over the limit."""
        return self._replace(idle_seconds=min(self.idle_seconds, OVER_LIMIT_IDLE_SECONDS))
