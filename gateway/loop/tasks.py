"""Background tasks with an owner.

Owns: keeping a reference to every running task, beginning again what must not end, and ending them together.
Must never enter: what they do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

#: Seconds until what failed is begun again: at first, doubled each time, and at most. What then went well for
#: as long as that has a first time again.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0

Work = Callable[[], Coroutine[Any, Any, Any]]


def _nobody(reason: str) -> None:
    """Nobody has to know."""


class Tasks:
    """A set of background tasks that end with their owner."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start ``work``; an exception in it is logged under ``name``."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(self, work: Work, name: str, failed: Callable[[str], None] = _nobody) -> asyncio.Task[Any]:
        """Start what must go on: see ``kept``."""
        return self.spawn(kept(work, name, failed), name)

    async def wait(self, seconds: float | None) -> None:
        """Wait up to ``seconds`` for all that run now."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    async def stop(self) -> None:
        """Cancel all and wait until each has ended."""
        for task in self._running:
            task.cancel()
        await self.wait(None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task %s failed", task.get_name(), exc_info=error)


async def kept(work: Work, name: str, failed: Callable[[str], None] = _nobody) -> None:
    """Do what ``work`` makes until it returns. Should an exception end it, nobody having thought of that,
    ``failed`` is told why and it is begun again, after pauses that grow."""
    now = asyncio.get_running_loop().time
    pause = FIRST_PAUSE
    while True:
        began = now()
        [fault] = await asyncio.gather(*[work()], return_exceptions=True)
        if not isinstance(fault, BaseException):
            return
        if now() - began >= LONGEST_PAUSE:
            pause = FIRST_PAUSE
        why = f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
        log.error("%s failed, and begins again in %g s: %s", name, pause, why)
        log.debug("%s failed", name, exc_info=fault)
        failed(f"{name} failed: {why}")
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
