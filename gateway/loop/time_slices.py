"""Long computations in slices, one in each iteration of the event loop.

Owns: whose slice is next. Must never enter: what is computed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


class TimeSlices:
    """Runs one step of one computation in each iteration of the event loop, first come, first served.

    However many computations there are, all other callbacks that are due run between two steps.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Run all of ``steps``; return its result or raise its exception."""
        while True:
            await self._slice()
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result

    async def run_step(self, steps: Generator[bytes | None, None, None]) -> bytes | None:
        """Run one step and return what it yielded, b"" for None; return None after the last step.

        Raises what the step raises.
        """
        await self._slice()
        try:
            return next(steps) or b""
        except StopIteration:
            return None

    async def _slice(self) -> None:
        """Wait for a slice."""
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._next)
        self._waiting.append(mine)
        await mine

    def _next(self) -> None:
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()  # cancelled while it waited
        if self._waiting:
            self._waiting.popleft().set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
