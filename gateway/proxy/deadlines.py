"""Deadlines of one exchange.

Owns: the timers that end an exchange which exceeds a limit. Must never enter: the values of the limits, what
is released when one expires, a dialect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.errors import GatewayError, ReplyUnread, UpstreamTimeout, WaitTimeout
from gateway.limits import Timeouts

FIRST_BYTE, IDLE, TOTAL = "first_byte", "idle", "total"

_MESSAGES = {
    FIRST_BYTE: "the worker did not begin its reply within {:g} s",
    IDLE: "the worker sent nothing for {:g} s",
}
#: The header by which a client limits the total time itself.
CLIENT_HEADER = "X-Request-Timeout"


class Deadlines:
    """The deadlines of one exchange, from its construction until ``stop``.

    ``expire`` is called once, with the reason, when a limit is exceeded. The limits on the worker count only
    the time for which the exchange waits for it, not the time its client takes to read. The reason for the
    total limit depends on what the exchange waited for: a worker, its worker's reply, or its client.

    There are at most two timers per exchange, however many events it has: a timer that fires looks at what
    happened since it was started, and is started again if the limit has not been reached.
    """

    def __init__(
        self, timeouts: Timeouts, expire: Callable[[GatewayError], None], *, from_client: bool = False
    ) -> None:
        """``from_client``: the total limit is the client's own."""
        self._timeouts = timeouts
        self._expire = expire
        self._from_client = from_client
        self._loop = asyncio.get_running_loop()
        self._has_worker = False
        #: The limit on the worker that applies now, and the time since when the exchange waits for it.
        self._phase, self._limit = FIRST_BYTE, timeouts.first_byte
        self._waiting_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._total_timer: asyncio.TimerHandle | None = None
        if timeouts.total is not None:
            self._total_timer = self._loop.call_later(timeouts.total, self._total_expired, timeouts.total)

    def worker_leased(self) -> None:
        """There is a worker; the request is not sent yet."""
        self._has_worker = True

    def worker_released(self) -> None:
        """The worker did not receive the request; there is none to wait for."""
        self._has_worker = False
        self._waiting_since = None

    def request_sent(self) -> None:
        """The request was sent to a worker."""
        self._waiting_since = self._loop.time()
        self._restart_timer()

    def awaiting_body(self) -> None:
        """More of the reply's body is waited for."""
        if self._waiting_since is None:
            self._waiting_since = self._loop.time()

    def body_received(self) -> None:
        """Some of the reply's body arrived; the worker is not waited for until ``awaiting_body``."""
        self._waiting_since = None
        if self._phase is FIRST_BYTE:
            self._phase, self._limit = IDLE, self._timeouts.idle
            self._restart_timer()

    def stop(self) -> None:
        """Cancel the timers: the exchange has ended."""
        for timer in (self._timer, self._total_timer):
            if timer is not None:
                timer.cancel()

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._limit is not None:
            self._timer = self._loop.call_later(self._limit, self._check, self._limit)

    def _check(self, limit: float) -> None:
        now = self._loop.time()
        due = now + limit if self._waiting_since is None else self._waiting_since + limit
        if now >= due:
            return self._end(UpstreamTimeout(_MESSAGES[self._phase].format(limit), limit=self._phase))
        self._timer = self._loop.call_at(due, self._check, limit)

    def _total_expired(self, limit: float) -> None:
        source = f", the limit of its {CLIENT_HEADER} header" if self._from_client else ""
        text = f"the request was not finished within {limit:g} s{source}: "
        if not self._has_worker:
            self._end(WaitTimeout(text + "it waited for a worker", limit=TOTAL))
        elif self._phase is IDLE and self._waiting_since is None:
            self._end(ReplyUnread(text + "its client did not read the reply", limit=TOTAL))
        else:
            self._end(UpstreamTimeout(text + "its worker had not replied in full", limit=TOTAL))

    def _end(self, reason: GatewayError) -> None:
        self.stop()
        self._expire(reason)
