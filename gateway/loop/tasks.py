"""Background tasks with an owner.

Owns: a reference to every running task, restarting tasks that fail, and ending all of them. Must never enter:
what the tasks do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

#: Seconds before work that failed is restarted: at first, doubled each time, and at most. Work that then ran
#: for LONGEST_PAUSE starts at FIRST_PAUSE again.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0

Work = Callable[[], Coroutine[Any, Any, Any]]


def _ignore(reason: str) -> None:
    """Do nothing."""


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

    def keep_running(
        self, work: Work, name: str, on_failure: Callable[[str], None] = _ignore
    ) -> asyncio.Task[Any]:
        """Start ``work`` and restart it if it fails: see the function ``keep_running``."""
        return self.spawn(keep_running(work, name, on_failure), name)

    async def wait(self, seconds: float | None) -> None:
        """Wait up to ``seconds`` for the tasks that run now."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    async def stop(self) -> None:
        """Cancel all tasks and wait until each has ended."""
        for task in self._running:
            task.cancel()
        await self.wait(None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task %s failed", task.get_name(), exc_info=error)


async def keep_running(work: Work, name: str, on_failure: Callable[[str], None] = _ignore) -> None:
    """Run ``work`` until it returns; if it raises, call ``on_failure`` with the reason and restart it.

    The pauses before a restart grow from FIRST_PAUSE to LONGEST_PAUSE seconds.
    """
    pause = FIRST_PAUSE
    while True:
        started = time.monotonic()
        [fault] = await asyncio.gather(*[work()], return_exceptions=True)
        if not isinstance(fault, BaseException):
            return
        if time.monotonic() - started >= LONGEST_PAUSE:
            pause = FIRST_PAUSE
        reason = f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
        log.error("%s failed and is restarted in %g s: %s", name, pause, reason)
        log.debug("%s failed", name, exc_info=fault)
        on_failure(f"{name} failed: {reason}")
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
