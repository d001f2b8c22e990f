"""Telling marks to whoever shares the fleet: the other processes of this gateway, and other gateways.

Owns: the order of the three, writes to the store that are tried again until it has them, when its word counts
again. Must never enter: what a mark means, a store's kind, the channel between processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from gateway.fleet.marks import Edits, Marks
from gateway.stores.base import Store, StoreUnavailable
from gateway.tasks import Tasks

log = logging.getLogger(__name__)

#: Seconds until a write that failed is tried again.
AGAIN = 1.0
#: Seconds after a write in which the store may still tell what was there before it.
LATE = 0.5


class Sharing:
    """One per app. ``marks`` are those of this process."""

    def __init__(self, marks: Marks, store: Store) -> None:
        self.marks = marks
        self._store = store
        self._tasks = Tasks()
        self._unwritten: set[str] = set()
        self._failing = False
        self._writing = asyncio.Lock()
        #: Tells the other processes of this gateway.
        self.to_processes: Callable[[Edits], Awaitable[None]] = _nobody
        marks.lifted = self._lifted

    async def edit(self, edits: Edits) -> None:
        """Apply ``edits`` here, and return when all others of this gateway do as well and the store has them,
        so that other gateways learn of it. Never longer than a second, whoever does not answer; the store is
        written to until it takes them."""
        self.marks.edit(edits)
        if self._store.keeps_marks:
            self._unwritten.update(edits)
        await asyncio.gather(self.to_processes(edits), self._write())

    def heard(self, edits: Edits) -> None:
        """Another process was told so. All of them write it, as any may be the one that lives."""
        self.marks.edit(edits)
        self._soon(edits)

    async def close(self) -> None:
        """Write nothing any more."""
        await self._tasks.stop()

    def _lifted(self, url: str) -> None:
        self._soon([url])  # every process finds that out by itself

    def _soon(self, urls: Iterable[str]) -> None:
        if self._store.keeps_marks:
            self._unwritten.update(urls)
            self._tasks.spawn(self._write(), "writing marks")

    async def _write(self, *, again: bool = False) -> None:
        """Write all that is unwritten, in one go however many wait for it. While that fails, nobody waits."""
        async with self._writing:
            edits = {url: words for url in self._unwritten if (words := self.marks.said(url))}
            if not edits or (self._failing and not again):
                return
            edited = {url: self.marks.edited(url) for url in edits}
            try:
                await self._store.mark(edits)
            except StoreUnavailable as error:
                if not self._failing:
                    log.warning("other gateways do not know yet who is paused or held: %s", error)
                self._failing = True
                self._tasks.spawn(self._write_later(), "writing marks again")
            else:
                self._failing = False
                self._unwritten -= {url for url, times in edited.items() if self.marks.edited(url) == times}
                self._tasks.spawn(self._settle(edited), "marks that the store has")

    async def _write_later(self) -> None:
        await asyncio.sleep(AGAIN)
        await self._write(again=True)

    async def _settle(self, edited: Mapping[str, int]) -> None:
        await asyncio.sleep(LATE)
        self.marks.settle(edited)


async def _nobody(edits: Edits) -> None:
    """There are no other processes."""
