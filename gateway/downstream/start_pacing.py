"""Starting exchanges no faster than the rest of the process can bear.

Owns: how many start in one turn of the event loop. Must never enter: what an exchange is.

A thousand requests that arrive at once would all be started in one turn, and whatever came after them (a
health check, a reply) would wait for all of it. So a turn starts a few, and the others wait for their turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

#: Exchanges started in one turn of the loop; a turn is then some milliseconds long.
PER_TURN = 16


T = TypeVar("T")


class StartPacer:
    """One per event loop. First come, first served; with few requests nothing waits."""

    def __init__(self) -> None:
        self._started = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def start(self, begin: Callable[[T], None], what: T) -> None:
        """Begin ``what`` now, or in one of the next turns."""
        if self._started >= PER_TURN:
            self._waiting.append(partial(begin, what))
            return
        if self._started == 0:
            asyncio.get_running_loop().call_soon(self._turn)
        self._started += 1
        begin(what)

    def _turn(self) -> None:
        self._started = min(PER_TURN, len(self._waiting))
        if self._started:
            asyncio.get_running_loop().call_soon(self._turn)
        for _ in range(self._started):
            self._waiting.popleft()()
