"""Values that bound a message or an exchange.

Owns: the limits on message heads and on the duration of an exchange. Must never enter: where a value is
configured, what happens when a limit is exceeded.
"""

from __future__ import annotations

from typing import NamedTuple


class HeadLimits(NamedTuple):
    """Limits on a request head from a client or a response head from a worker.

    ``size`` is in bytes, and also bounds any other run of bytes that is not part of a body (chunk headers,
    trailers). ``lines`` is the number of header fields.
    """

    size: int = 256 * 1024
    lines: int = 256


DEFAULT_HEAD = HeadLimits()


class Timeouts(NamedTuple):
    """Limits on the duration of an exchange in seconds; None: no limit.

    ``first_byte`` counts from sending the request to a worker to the first byte of the body of its reply,
    ``idle`` while no more of that body arrives, ``total`` from the complete request to the end of its reply,
    waiting for a worker included.
    """

    first_byte: float | None = None
    idle: float | None = None
    total: float | None = None

    def within(self, seconds: float) -> Timeouts:
        """Return these limits with a ``total`` of at most ``seconds``."""
        return self if self.total is not None and self.total <= seconds else self._replace(total=seconds)


NO_TIMEOUTS = Timeouts()
