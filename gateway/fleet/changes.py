"""Changes of the fleet, and the followers that are notified of them.

Owns: what a change is, and a bounded queue for each follower. Must never enter: what followers do with it,
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
    CARD = "card"


@dataclass(frozen=True, slots=True)
class Change:
    """One change. ``state`` and ``reason`` are those of the moment; the worker itself goes on changing."""

    kind: ChangeKind
    worker: Worker
    state: WorkerState
    reason: str

    @classmethod
    def now(cls, kind: ChangeKind, worker: Worker) -> Change:
        return cls(kind, worker, worker.state, worker.reason)


#: None means that the follower was too slow: its changes were dropped, and it has to look at all members.
Changes = asyncio.Queue[Change | None]


class Followers:
    """The queues of all followers. To notify them never waits."""

    def __init__(self) -> None:
        self._queues: set[Changes] = set()

    def __len__(self) -> int:
        return len(self._queues)

    @contextmanager
    def follow(self) -> Iterator[Changes]:
        """Yield a queue of all changes from now on, until the context ends."""
        changes: Changes = asyncio.Queue(BACKLOG)
        self._queues.add(changes)
        try:
            yield changes
        finally:
            self._queues.remove(changes)

    def notify(self, kind: ChangeKind, worker: Worker) -> None:
        change = Change.now(kind, worker)
        for changes in self._queues:
            if changes.full():
                forget(changes)
                changes.put_nowait(None)
            else:
                changes.put_nowait(change)


def forget(changes: Changes) -> None:
    """Drop all waiting changes."""
    while not changes.empty():
        changes.get_nowait()
