"""What a client may do to its connection, and how long it may take its time.

Owns: these limits, and judging who has used up his time. Must never enter: a socket, a timer, what is said to
who is over.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from gateway.limits import DEFAULT_HEAD, HeadLimits

#: Connections over the limit that still get an answer on routes which need no worker: health, metrics.
RESERVED_CONNECTIONS = 32
#: How long such a connection is kept without a request, in seconds.
OVER_LIMIT_IDLE_SECONDS = 5.0
#: Looks at a connection within the shortest of its times.
_LOOKS = 4
_NOTHING_YET = (0, 0)


class ClientLimits(NamedTuple):
    """Times are in seconds, ``body_rate`` is in bytes per second. ``unread_seconds``: None is any time.
    ``connections`` is how many there may be at once, None: any number; the first one that is not even
    answered on routes which need no worker is told ``overload_status``.
    """

    head: HeadLimits = DEFAULT_HEAD
    head_seconds: float = 30.0
    body_seconds: float = 60.0
    body_rate: int = 240
    unread_seconds: float | None = 1800.0
    idle_seconds: float = 75.0
    connections: int | None = None
    overload_status: int = 503

    @property
    def interval(self) -> float:
        """Time between two looks at a connection."""
        times = (self.head_seconds, self.body_seconds, self.idle_seconds, self.unread_seconds)
        return min(time for time in times if time is not None) / _LOOKS

    @property
    def body_step(self) -> int:
        """Bytes of a body that have to come within ``body_seconds``, one at least."""
        return max(1, int(self.body_rate * self.body_seconds))

    def crowded(self) -> ClientLimits:
        """For a connection that is one too many."""
        return self._replace(idle_seconds=min(self.idle_seconds, OVER_LIMIT_IDLE_SECONDS))


class Phase(StrEnum):
    """What a connection waits for; the client, unless it is SERVED."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    SERVED = "served"
    #: For the client to read. It may do so whatever else is waited for.
    UNREAD = "unread"


class Patience:
    """How long one client has kept its connection waiting, as far as looking at it now and then tells.

    Between the limit and half as much again passes, which costs a connection a timer now and then and its
    requests nothing.
    """

    def __init__(self, limits: ClientLimits, now: float) -> None:
        self._limits = {
            Phase.IDLE: limits.idle_seconds,
            Phase.HEAD: limits.head_seconds,
            Phase.BODY: limits.body_seconds,
            Phase.UNREAD: limits.unread_seconds,
        }
        self._seen: tuple[Phase, object] = (Phase.IDLE, _NOTHING_YET)
        self._since = now

    def spent(self, phase: Phase, progress: object, now: float) -> bool:
        """Whether the client's time is up. ``progress`` is a value that changes with all it does in time."""
        if self._seen != (phase, progress):
            self._seen, self._since = (phase, progress), now
            return False
        limit = self._limits.get(phase)
        return limit is not None and now - self._since >= limit
