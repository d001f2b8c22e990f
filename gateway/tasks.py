"""Background tasks with an owner.

Owns: keeping a reference to every running task and ending them together. Must never enter: what they do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


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
