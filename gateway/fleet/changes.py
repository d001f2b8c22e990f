"""Who is told when the fleet changes.

Owns: what a change is, and a bounded queue for each who follows. Must never enter: what followers do with it,
membership, I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker

#: Changes that may wait for one follower. All workers of a large fleet may change at once.
BACKLOG = 1024


class ChangeKind(StrEnum):
    JOINED = "joined"
    LEFT = "left"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class Change:
    """``state`` and ``reason`` are those of the moment; the worker itself goes on changing."""

    kind: ChangeKind
    worker: Worker
    state: WorkerState
    reason: str

    @classmethod
    def now(cls, kind: ChangeKind, worker: Worker) -> Change:
        return cls(kind, worker, worker.state, worker.reason)


#: None says that the follower did not keep up: what waited was dropped, and it has to look at all members.
Changes = asyncio.Queue[Change | None]


class Followers:
    """The queues of all who follow. Telling them never waits, whatever they do."""

    def __init__(self) -> None:
        self._queues: set[Changes] = set()

    def __len__(self) -> int:
        return len(self._queues)

    @contextmanager
    def follow(self) -> Iterator[Changes]:
        """All changes from now on, until the context ends."""
        changes: Changes = asyncio.Queue(BACKLOG)
        self._queues.add(changes)
        try:
            yield changes
        finally:
            self._queues.remove(changes)

    def tell(self, kind: ChangeKind, worker: Worker) -> None:
        change = Change.now(kind, worker)
        for changes in self._queues:
            if changes.full():
                forget(changes)
                changes.put_nowait(None)
            else:
                changes.put_nowait(change)


def forget(changes: Changes) -> None:
    """Drop all that waits."""
    while not changes.empty():
        changes.get_nowait()
