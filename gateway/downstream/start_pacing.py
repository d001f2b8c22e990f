"""A bound on how many exchanges start in one iteration of the event loop.

Owns: the queue of exchanges that are about to start. Must never enter: what an exchange is.

If a thousand requests arrived at once and all started in one iteration, everything after them (a health
check, a reply) would wait for all of them. So an iteration starts a few, and the others wait for the next
ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

#: Exchanges that start in one iteration of the event loop, which then takes a few milliseconds.
PER_ITERATION = 16


T = TypeVar("T")


class StartPacer:
    """Starts exchanges in the order of their arrival; with few of them, nothing waits."""

    def __init__(self) -> None:
        self._started = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def start(self, begin: Callable[[T], None], request: T) -> None:
        """Call ``begin(request)`` now, or in one of the next iterations."""
        if self._started >= PER_ITERATION:
            self._waiting.append(partial(begin, request))
            return
        if self._started == 0:
            asyncio.get_running_loop().call_soon(self._next_iteration)
        self._started += 1
        begin(request)

    def _next_iteration(self) -> None:
        self._started = min(PER_ITERATION, len(self._waiting))
        if self._started:
            asyncio.get_running_loop().call_soon(self._next_iteration)
        for _ in range(self._started):
            self._waiting.popleft()()
