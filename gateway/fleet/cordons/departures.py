"""Decide whether a worker that reappears at a URL is the same process, which keeps its cordons, or a new one.

Owns: which workers departed, and for how long their cordons wait for them. Must never enter: a reason, why a
record was removed, a request to a worker.

A record can go while its engine runs on: a lease runs out because its keeper hung, or a pod is not ready for
a moment. An engine that was paused is still paused when it is back. It is another process if its owner says
so (``WorkerRecord.incarnation``), and is taken for another one after an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.stores.record import WorkerRecord

#: How long cordons wait for their worker, in seconds, and for how many workers; the first that departed is
#: dropped first.
MAX_WAIT_SECONDS, MAX_WORKERS = 3600.0, 1024


class Departures:
    """The workers that departed. ``now`` is a monotonic clock, in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        #: By URL, in the order of departure: the time of it, and the incarnation that departed.
        self._departed: dict[str, tuple[float, str]] = {}

    def __contains__(self, url: str) -> bool:
        return url in self._departed

    def add(self, url: str, incarnation: str = "") -> list[str]:
        """Note that the worker at ``url`` departed; return the URLs that are not waited for any longer."""
        self._departed.pop(url, None)
        self._departed[url] = (self._now(), incarnation)
        dropped = []
        while len(self._departed) > MAX_WORKERS or self._is_over(next(iter(self._departed.values()))[0]):
            dropped.append(next(iter(self._departed)))
            del self._departed[dropped[-1]]
        return dropped

    def is_another(self, record: WorkerRecord) -> bool:
        """Return True if the worker that is at ``record.url`` from now on is not the one that departed."""
        at, incarnation = self._departed.pop(record.url, (None, ""))
        return at is not None and (self._is_over(at) or record.succeeds(incarnation))

    def _is_over(self, at: float) -> bool:
        return self._now() - at > MAX_WAIT_SECONDS
