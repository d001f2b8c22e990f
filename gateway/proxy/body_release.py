"""Releasing the request bodies of exchanges that have run for a while.

Owns: when a body is released, and how much work is done in one loop iteration. Must never enter: how a body
is released.

Most exchanges end before, and cost one entry in a table. Releasing a body takes some work (its digest may be
needed), which is due for many exchanges at once if many began at once. So one step is done in each iteration
of the loop, for one exchange after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

#: Seconds after which the body of an exchange is released.
RELEASE_AFTER = 2.0
_EXHAUSTED = object()


class HoldsBody(Protocol):
    """An exchange that holds a large body."""

    def release_body(self) -> Iterator[None] | None:
        """Return steps of a few milliseconds that release the body; None: it is still needed."""
        ...


class BodyRelease:
    """The schedule by which the exchanges of one event loop release their bodies."""

    def __init__(self, after: float = RELEASE_AFTER) -> None:
        self._after = after
        #: Exchange -> loop time at which it is due, in the order of these times.
        self._due: dict[HoldsBody, float] = {}
        self._timer: asyncio.Handle | None = None
        self._current: HoldsBody | None = None
        self._steps: Iterator[None] | None = None

    def __len__(self) -> int:
        """Return the number of exchanges whose body is still to be released."""
        return len(self._due) + (self._steps is not None)

    def add(self, exchange: HoldsBody) -> None:
        """Schedule the release of the body of ``exchange``."""
        loop = asyncio.get_running_loop()
        self._due[exchange] = loop.time() + self._after
        if self._timer is None:
            self._timer = loop.call_later(self._after, self._run_step)

    def remove(self, exchange: HoldsBody) -> None:
        """Forget an exchange; unknown ones are ignored."""
        self._due.pop(exchange, None)
        if self._current is exchange:
            self._current = self._steps = None

    def _run_step(self) -> None:
        try:
            if self._steps is None:
                self._begin_next(asyncio.get_running_loop().time())
            elif next(self._steps, _EXHAUSTED) is _EXHAUSTED:
                self._current = self._steps = None
        finally:  # whatever a format raises
            self._schedule()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        if self._steps is not None:
            self._timer = loop.call_soon(self._run_step)
        elif self._due:
            self._timer = loop.call_at(next(iter(self._due.values())), self._run_step)
        else:
            self._timer = None

    def _begin_next(self, now: float) -> None:
        """Begin with the first exchange that is due, if any."""
        exchange, due = next(iter(self._due.items()), (None, now))
        if exchange is None or due > now:
            return
        del self._due[exchange]
        steps = exchange.release_body()
        if steps is None:
            self._due[exchange] = now + self._after
        else:
            self._current, self._steps = exchange, steps
