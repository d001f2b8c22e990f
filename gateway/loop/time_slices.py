"""Long work in short turns.

Owns: whose turn it is. Must never enter: what the work is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


class TimeSlices:
    """One step of one work in each turn of the event loop, first come, first served.

    However many there are at once, whatever else is due comes between two steps.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Run ``steps`` to their end; its result. What they raise, this raises."""
        while True:
            await self._turn()
            try:
                next(steps)
            except StopIteration as done:
                result: T = done.value
                return result

    async def run_step(self, steps: Generator[bytes | None, None, None]) -> bytes | None:
        """One step in its turn: what it yielded, b"" for None; None: it was the last. What it raises, this
        raises."""
        await self._turn()
        try:
            return next(steps) or b""
        except StopIteration:
            return None

    async def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._next)
        self._waiting.append(turn)
        await turn

    def _next(self) -> None:
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()  # given up meanwhile
        if self._waiting:
            self._waiting.popleft().set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
