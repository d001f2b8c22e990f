"""Letting go of what an exchange needs no longer, once it has run for a while.

Owns: when that is, and how much is done in one turn of the event loop. Must never enter: what is let go of.

Most exchanges are over before, and cost an entry in a table. For the others it takes some work, which is due
for many at once where many began at once: a step is done in each turn of the loop, for one exchange after the
other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

#: Seconds that an exchange has run by then.
AFTER = 2.0
_OVER = object()


class Sheds(Protocol):
    """An exchange that holds something large."""

    def shed(self) -> Iterator[None] | None:
        """Let go of it, with a yield every few milliseconds; None: it is still needed."""
        ...


class BodyRelease:
    """One per event loop."""

    def __init__(self, after: float = AFTER) -> None:
        self._after = after
        #: When each is due, in the order in which they are.
        self._due: dict[Sheds, float] = {}
        self._timer: asyncio.Handle | None = None
        self._at_work: Sheds | None = None
        self._steps: Iterator[None] | None = None

    def __len__(self) -> int:
        """Exchanges that still hold what they are to let go of."""
        return len(self._due) + (self._steps is not None)

    def add(self, exchange: Sheds) -> None:
        """It may soon be asked to ``shed``."""
        loop = asyncio.get_running_loop()
        self._due[exchange] = loop.time() + self._after
        if self._timer is None:
            self._timer = loop.call_later(self._after, self._turn)

    def drop(self, exchange: Sheds) -> None:
        """It is over; unknown ones are ignored."""
        self._due.pop(exchange, None)
        if self._at_work is exchange:
            self._at_work = self._steps = None

    def _turn(self) -> None:
        try:
            if self._steps is None:
                self._begin(asyncio.get_running_loop().time())
            elif next(self._steps, _OVER) is _OVER:
                self._at_work = self._steps = None
        finally:  # whatever a format raises
            self._go_on()

    def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        if self._steps is not None:
            self._timer = loop.call_soon(self._turn)
        elif self._due:
            self._timer = loop.call_at(next(iter(self._due.values())), self._turn)
        else:
            self._timer = None

    def _begin(self, now: float) -> None:
        """With the first that is due, if one is."""
        exchange, due = next(iter(self._due.items()), (None, now))
        if exchange is None or due > now:
            return
        del self._due[exchange]
        steps = exchange.shed()
        if steps is None:
            self._due[exchange] = now + self._after
        else:
            self._at_work, self._steps = exchange, steps
