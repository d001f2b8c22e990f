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

_SAID = {
    FIRST_BYTE: "the worker did not begin its reply within {:g} s",
    IDLE: "the worker sent nothing for {:g} s",
}
#: A client's own limit of the time in all.
ASKED = "X-Request-Timeout"


class Watch:
    """Calls ``end`` once, with the reason, when the exchange takes longer than it may. Begins when made.

    The reason tells whom it waited for by then: its worker, its client, or, as long as ``has_worker`` says
    that it has none, for one. Two timers for an exchange, however many events it has: what came meanwhile is
    looked at when one rings.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        end: Callable[[GatewayError], None],
        has_worker: Callable[[], bool] = lambda: True,
        *,
        asked: bool = False,
    ) -> None:
        """``asked``: the time in all is the client's own limit."""
        self._timeouts = timeouts
        self._end = end
        self._has_worker = has_worker
        self._asked = asked
        self._loop = asyncio.get_running_loop()
        #: What the worker is limited by now, and since when it has kept the exchange waiting.
        self._phase, self._limit = FIRST_BYTE, timeouts.first_byte
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._total: asyncio.TimerHandle | None = None
        if timeouts.total is not None:
            self._total = self._loop.call_later(timeouts.total, self._all_over, timeouts.total)

    def sent(self) -> None:
        """A worker was sent the request."""
        self._since = self._loop.time()
        self._arm()

    def unsent(self) -> None:
        """It did not take it; there is no worker to wait for."""
        self._since = None

    def waits(self) -> None:
        """More of the reply is waited for."""
        if self._since is None:
            self._since = self._loop.time()

    def came(self) -> None:
        """Some of its body came. Who takes his time now is not the worker."""
        self._since = None
        if self._phase is FIRST_BYTE:
            self._phase, self._limit = IDLE, self._timeouts.idle
            self._arm()

    def stop(self) -> None:
        """The exchange is over."""
        for timer in (self._timer, self._total):
            if timer is not None:
                timer.cancel()

    def _arm(self) -> None:
        """From now on a ring at least every ``_limit`` seconds, so that no wait can be missed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._limit is not None:
            self._timer = self._loop.call_later(self._limit, self._look, self._limit)

    def _look(self, limit: float) -> None:
        now = self._loop.time()
        due = now + limit if self._since is None else self._since + limit
        if now >= due:
            return self._over(UpstreamTimeout(_SAID[self._phase].format(limit), limit=self._phase))
        self._timer = self._loop.call_at(due, self._look, limit)

    def _all_over(self, limit: float) -> None:
        asked = f", as its {ASKED} says" if self._asked else ""
        said = f"the request was not finished within {limit:g} s{asked}: "
        if not self._has_worker():
            self._over(WaitTimeout(said + "it waited for a worker", limit=TOTAL))
        elif self._phase is IDLE and self._since is None:
            self._over(ReplyUnread(said + "its client did not read the reply", limit=TOTAL))
        else:
            self._over(UpstreamTimeout(said + "its worker had not replied in full", limit=TOTAL))

    def _over(self, reason: GatewayError) -> None:
        self.stop()
        self._end(reason)
