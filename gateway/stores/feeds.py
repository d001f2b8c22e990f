"""The watches of one store, each fed by its own task.

Owns: those tasks, the queue between a task and its reader, and their end. Must never enter: where records
are kept. A reader that is slow delays its own task only. A task that fails because of a bug is restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine

from gateway.loop.tasks import Tasks, keep_running
from gateway.stores.base import Change

#: Changes that are queued for one reader; above that its task waits.
BACKLOG = 1024

Emit = Callable[[Change], Awaitable[None]]
Feed = Callable[[Emit], Coroutine[None, None, None]]


class Feeds:
    """The running watches of a store."""

    def __init__(self) -> None:
        self._tasks = Tasks()
        self._closed = False

    async def watch(
        self, feed: Feed, name: str, failed: Callable[[str], None]
    ) -> AsyncGenerator[Change, None]:
        """Yield the changes that ``feed`` emits, until it returns or ``close`` is called.

        ``feed`` is cancelled when the reader stops. ``failed`` is called with the reason for each restart.
        """
        if self._closed:
            return
        changes: asyncio.Queue[Change | None] = asyncio.Queue(BACKLOG)
        restarting = keep_running(lambda: feed(changes.put), name, failed)
        task = self._tasks.spawn(_run(restarting, changes), name)
        try:
            while (change := await changes.get()) is not None:
                yield change
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """End every watch; a watch that begins later ends at once."""
        self._closed = True
        await self._tasks.stop()


async def _run(feed: Coroutine[None, None, None], changes: asyncio.Queue[Change | None]) -> None:
    try:
        await feed
    finally:
        while changes.full():
            changes.get_nowait()
        changes.put_nowait(None)
