"""The log of a simulated engine: the requests it received and what happened to them.

Owns: the log, and waiting for its entries. Must never enter: a dialect, sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum


class Milestone(StrEnum):
    """A point in the life of a generate request."""

    ARRIVED = "arrived"  # read completely, or acted upon before
    STREAMING = "streaming"  # its first event was written
    FINISHED = "finished"  # its reply was written in full
    ABORTED = "aborted"  # its generation was stopped before its end
    CLIENT_GONE = "client_gone"  # its client disconnected before the reply was complete
    CUT = "cut"  # the engine broke the connection, as configured or scripted


@dataclass(slots=True, eq=False)
class Arrival:
    """One request, byte for byte.

    Times are of the loop's monotonic clock, in seconds; None until it happens. ``headers`` hold names and
    values as they stood on the wire, in order. ``body`` has no chunk framing. ``connection`` numbers the
    server's connections from 1. ``events`` counts the stream events written.
    """

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    connection: int
    at: float
    generate: bool = False
    body: bytes = b""
    events: int = 0
    status: int | None = None
    ids: list[str] = field(default_factory=list)
    arrived: float | None = None
    streaming: float | None = None
    finished: float | None = None
    aborted: float | None = None
    client_gone: float | None = None
    cut: float | None = None

    def header(self, name: str) -> str | None:
        """Return the first value of a header, None without one. The case of the name does not matter."""
        wanted = name.lower().encode()
        for key, value in self.headers:
            if key.lower() == wanted:
                return value.decode("latin-1")
        return None


@dataclass(frozen=True, slots=True)
class AbortCall:
    """One call of an abort route: the ids it named, or all requests; ``hit`` counts the requests that it
    ended.
    """

    ids: tuple[str, ...]
    everything: bool
    hit: int
    at: float


class RequestLog:
    """The last requests, and for each milestone the generate requests in the order in which they reached
    it.
    """

    def __init__(self, limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.all: deque[Arrival] = deque(maxlen=limit)
        self.generates: deque[Arrival] = deque(maxlen=limit)
        self.aborts: deque[AbortCall] = deque(maxlen=limit)
        self._counts = dict.fromkeys(Milestone, 0)
        self._reached: dict[Milestone, deque[Arrival]] = {
            milestone: deque(maxlen=limit) for milestone in Milestone
        }
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def count(self, milestone: Milestone) -> int:
        """Return how many generate requests have reached ``milestone``."""
        return self._counts[milestone]

    def record(self, arrival: Arrival, milestone: Milestone) -> None:
        """Record that ``arrival`` has reached ``milestone``; only the first time counts."""
        if getattr(arrival, milestone) is not None:
            return
        setattr(arrival, milestone, self._loop.time())
        if arrival.generate:
            self._counts[milestone] += 1
            self._reached[milestone].append(arrival)
            self.changed()

    def called(self, abort: AbortCall) -> None:
        """Record a call of an abort route."""
        self.aborts.append(abort)
        self.changed()

    def changed(self) -> None:
        """Wake the callers whose condition now holds."""
        if not self._waiting:
            return
        still = []
        for condition, future in self._waiting:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                still.append((condition, future))
        self._waiting = still

    def when(self, condition: Callable[[], bool], then: Callable[[], None]) -> None:
        """Call ``then`` once, as soon as ``condition`` holds."""
        if condition():
            then()
            return
        future = self._loop.create_future()
        future.add_done_callback(lambda done: None if done.cancelled() else then())
        self._waiting.append((condition, future))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return as soon as ``condition`` holds; it is evaluated after every change."""
        if condition():
            return
        future = self._loop.create_future()
        self._waiting.append((condition, future))
        await future

    async def wait(self, milestone: Milestone, count: int) -> Arrival:
        """Return the ``count``-th generate request that reached ``milestone``, as soon as there is one.

        Raises LookupError if the log no longer has it.
        """
        await self.until(lambda: self._counts[milestone] >= count)
        behind, kept = self._counts[milestone] - count, self._reached[milestone]
        if behind >= len(kept):
            raise LookupError(f"only the last {len(kept)} requests are remembered; raise log_limit")
        return kept[-1 - behind]
