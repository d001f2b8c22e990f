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
    """Limits in seconds, None: any time.

    ``first_byte`` counts from when a worker was sent the request to the first byte of its reply's body,
    ``idle`` while nothing comes of that reply then, ``total`` from when the request was whole to the end of
    its reply, waiting for a worker included.
    """

    first_byte: float | None = None
    idle: float | None = None
    total: float | None = None

    def within(self, seconds: float) -> Timeouts:
        """With a ``total`` of at most ``seconds``; the same where it is no longer."""
        return self if self.total is not None and self.total <= seconds else self._replace(total=seconds)


NO_TIMEOUTS = Timeouts()
