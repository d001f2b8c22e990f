"""The watches of one store, each fed by a task of its own.

Owns: those tasks, what waits between a task and its reader, and their end. Must never enter: where records
live. A reader that is slow, or away, holds up its own task only. A task that fails, which none is meant to,
begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine

from gateway.loop.tasks import Tasks, keep_running
from gateway.stores.base import Change

#: Changes that wait for one reader; past that its task waits.
BACKLOG = 1024

Emit = Callable[[Change], Awaitable[None]]
Feed = Callable[[Emit], Coroutine[None, None, None]]


class Feeds:
    """``close`` ends them all."""

    def __init__(self) -> None:
        self._tasks = Tasks()
        self._closed = False

    async def watch(
        self, feed: Feed, name: str, failed: Callable[[str], None]
    ) -> AsyncGenerator[Change, None]:
        """What ``feed`` tells, until it ends or all are closed; it is cancelled when the reader stops.
        ``failed`` is told why it has to begin again."""
        if self._closed:
            return
        changes: asyncio.Queue[Change | None] = asyncio.Queue(BACKLOG)
        fed = keep_running(lambda: feed(changes.put), name, failed)
        task = self._tasks.spawn(_until_over(fed, changes), name)
        try:
            while (change := await changes.get()) is not None:
                yield change
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """End every watch; none begins any more."""
        self._closed = True
        await self._tasks.stop()


async def _until_over(fed: Coroutine[None, None, None], changes: asyncio.Queue[Change | None]) -> None:
    try:
        await fed
    finally:
        while changes.full():
            changes.get_nowait()
        changes.put_nowait(None)
