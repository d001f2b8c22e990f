"""Telling marks to whoever shares the fleet: the other processes of this gateway, and other gateways.

Owns: that each is told, writes to the store that are tried again until it has them. Must never enter: what a
mark means, which of two counts, a store's kind, the channel between processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from gateway.fleet.cordons.cordons import REMOVED, Changes, Cordons
from gateway.loop.tasks import Tasks
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.versioned import Updates, Versioned

log = logging.getLogger(__name__)

#: Seconds until a write that failed is tried again.
AGAIN = 1.0
#: Cordons in one write, which has to be done within a second.
BATCH = 1024


class CordonReplication:
    """One per app. ``marks`` are those of this process."""

    def __init__(self, marks: Cordons, store: Store) -> None:
        self.marks = marks
        self._store = store
        self._tasks = Tasks()
        #: URLs and words, in the order in which they are written.
        self._unwritten: dict[tuple[str, str], None] = {}
        self._failing = False
        self._writing = asyncio.Lock()
        #: Tells the other processes of this gateway.
        self.to_processes: Callable[[Updates], Awaitable[None]] = _nobody
        marks.lifted = self._lifted

    async def edit(self, wishes: Changes) -> None:
        """Apply ``wishes`` here, and return when all others of this gateway do as well and the store has
        them, so that other gateways learn of it. Never longer than a second, whoever does not answer; the
        store is written to until it takes them."""
        await self._tell(self.marks.say(wishes))

    def heard(self, edits: Updates) -> None:
        """Another process was told so. All of them write it, as any may be the one that lives."""
        if self._to_write(self.marks.hear(edits)):
            self._tasks.spawn(self._write(), "writing marks")

    async def close(self) -> None:
        """Write nothing any more."""
        await self._tasks.stop()

    def _lifted(self, edits: Updates) -> None:
        self._tasks.spawn(self._tell(edits), "telling marks")

    async def _tell(self, edits: Updates) -> None:
        self._to_write(edits)
        await asyncio.gather(self.to_processes(edits), self._write())

    def _to_write(self, edits: Updates) -> bool:
        """Whether there is something to be written now."""
        if self._store.keeps_cordons:
            found = ((url, word) for url, words in edits.items() for word in words if word != REMOVED)
            self._unwritten |= dict.fromkeys(found)
        return bool(self._unwritten)

    async def _write(self, *, again: bool = False) -> None:
        """Write all that is unwritten, in one go however many wait for it. While that fails, nobody waits."""
        async with self._writing:
            while (again or not self._failing) and (edits := self._batch()):
                try:
                    await self._store.write_cordons(edits)
                except StoreUnavailable as error:
                    return self._failed(error)
                self._failing = False
                for url, words in edits.items():
                    for word, said in words.items():
                        if self.marks.known(url, word) == said:
                            self._unwritten.pop((url, word), None)

    def _batch(self) -> Mapping[str, Mapping[str, Versioned]]:
        """What is to be written next. What nobody remembers any more is no matter of the store either."""
        edits: dict[str, dict[str, Versioned]] = {}
        for url, word in list(self._unwritten)[:BATCH]:
            if (said := self.marks.known(url, word)) is None:
                del self._unwritten[url, word]
            else:
                edits.setdefault(url, {})[word] = said
        return edits

    def _failed(self, error: StoreUnavailable) -> None:
        if not self._failing:
            log.warning("other gateways do not know yet who is paused or held: %s", error)
            self._failing = True
            self._tasks.keep(self._write_later, "writing marks again")

    async def _write_later(self) -> None:
        while self._failing:
            await asyncio.sleep(AGAIN)
            await self._write(again=True)


async def _nobody(edits: Updates) -> None:
    """There are no other processes."""
