"""How long a connection to one worker may be idle and still carry another request.

Owns: the limit, and how it is learned. Must never enter: sockets, a clock.

A server that closes an idle connection while a request is on its way to it resets the connection, and nobody
can prove from outside that the request was not read. So a connection is not used close to the moment at which
its server closes it. That moment is not known in advance (uvicorn: 5 s; proxies and other settings: less), so
one spare connection, which carries no further request, shows how long connections stay open.
"""

from __future__ import annotations

import re

#: Seconds: the limit as long as nothing is known, and the largest limit. Engines are served by uvicorn, which
#: closes a connection that was idle for 5 s (its timeout_keep_alive).
FIRST, MOST = 0.4, 3.5
#: The limit as a share of the time for which connections stay open, and the least difference in seconds.
SHARE, LEAST_MARGIN = 0.75, 0.05

_TIMEOUT = re.compile(rb"(?:^|[,; ])timeout *= *\"?([0-9]{1,6})", re.IGNORECASE)


class IdleLimit:
    """The limit for the connections to one worker, in ``seconds``."""

    __slots__ = ("_most", "seconds")

    def __init__(self) -> None:
        self.seconds = FIRST
        self._most = MOST

    @property
    def settled(self) -> bool:
        """True if the limit is as large as it may be."""
        return self.seconds >= self._most

    def announced(self, keep_alive: bytes) -> None:
        """Take in the value of a ``Keep-Alive`` header: a second less than its ``timeout`` is the most."""
        found = _TIMEOUT.search(keep_alive)
        if found is not None:
            timeout = float(found[1])
            self._most = min(MOST, timeout - 1 if timeout >= 2 else timeout / 2)
            self.seconds = min(self.seconds, self._most)

    def survived(self, seconds: float) -> None:
        """A connection that was idle for ``seconds`` is still open."""
        self.seconds = max(self.seconds, min(seconds * SHARE, self._most))

    def ended(self, seconds: float) -> None:
        """The worker closed a connection that was idle for ``seconds``."""
        limit = min(seconds * SHARE, seconds - LEAST_MARGIN)
        self.seconds = max(0.0, min(self.seconds, limit))
