"""Workers that left without a word of their users: whether who comes next at their URL is the same engine.

Owns: when they left, and for how long their marks wait for them. Must never enter: what a mark means, why a
record went, asking anybody.

A lease runs out because its keeper hung, a pod is unready for a moment: the engine that was paused is paused
when it is back. It is another one if its owner says so (WorkerRecord.incarnation), and taken for another one
after an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.fleet.cordons.cordons import Cordons
from gateway.stores.record import WorkerRecord

#: How long marks wait for their worker, in seconds, and for how many workers; the first that left go first.
LONGEST, MOST = 3600.0, 1024


@dataclass(frozen=True, slots=True)
class _Left:
    at: float
    incarnation: str = ""


class Departures:
    """One per app. ``now`` is a monotonic clock."""

    def __init__(self, marks: Cordons, now: Callable[[], float] = time.monotonic) -> None:
        self._marks = marks
        self._now = now
        self._left: dict[str, _Left] = {}
        marks.homeless = self.unseen

    def left(self, record: WorkerRecord) -> bool:
        """Its record went; whether there are marks that wait for it."""
        if not self._marks.of(record.url):
            return False
        self._note(record.url, _Left(self._now(), record.incarnation))
        return True

    def unseen(self, url: str) -> None:
        """There are marks of a worker that is none: it left a moment ago, or is not here yet."""
        if url not in self._left:
            self._note(url, _Left(self._now()))

    def came(self, record: WorkerRecord) -> None:
        """A worker is there from now on: lift the marks of one before it."""
        left = self._left.pop(record.url, None)
        if left is not None and (self._over(left) or record.succeeds(left.incarnation)):
            self._marks.lift(record.url, held=True)

    def _note(self, url: str, left: _Left) -> None:
        self._left.pop(url, None)
        self._left[url] = left
        while len(self._left) > MOST or self._over(next(iter(self._left.values()))):
            first = next(iter(self._left))
            del self._left[first]
            self._marks.lift(first, held=True)

    def _over(self, left: _Left) -> bool:
        return self._now() - left.at > LONGEST
