"""Requests that wait for a worker.

Owns: their order, how many there may be, and whose turn it is. Must never enter: the choice of a worker, a
dialect, what a request is.

Who waits for the same model waits in line; who waits for another one has a line of its own. A worker that
becomes usable is not given a whole line at once: those that come up a moment later are to have their share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from gateway.drive import Signal
from gateway.errors import Draining, GatewayError, InvalidRequest, NoWorker, UnknownModel
from gateway.fleet.changes import forget
from gateway.fleet.registry import Fleet
from gateway.fleet.worker import Worker

#: What may go to each usable worker in one round, and seconds between two rounds.
ROUND, PACE = 32, 0.01
#: Seconds after which the fleet is looked at though nobody told of a change.
GLANCE = 1.0

#: Workers that a request must not be sent to any more, and which life of each it was sent to.
Tried = Mapping[Worker, object]
#: A capability and a model; None: any.
Line = tuple[str, str | None]


class Counts(Protocol):
    """Who is told what becomes of those that wait."""

    def waited(self, seconds: float) -> None: ...

    def not_held(self, reason: str) -> None:
        """One was turned away: ``full`` or ``timeout``."""
        ...


@dataclass(slots=True, eq=False)
class _Waiter:
    line: Line
    tried: Tried
    size: int
    signal: Signal = field(default_factory=Signal)
    in_line: bool = False
    failure: GatewayError | None = None


def excluded(tried: Tried) -> Collection[Worker]:
    """Those of ``tried`` that are still the process which it was sent to."""
    return [worker for worker, life in tried.items() if worker.life is life] if tried else ()


class Queue:
    """``seconds`` is how long a request may wait; 0: none does. At most ``requests`` wait at once, whose
    bodies have at most ``size`` bytes together."""

    def __init__(self, fleet: Fleet, counts: Counts, *, seconds: float, requests: int, size: int) -> None:
        self._fleet = fleet
        self._counts = counts
        self._seconds = seconds
        self._most = requests
        self._most_bytes = size
        self._lines: dict[Line, dict[_Waiter, None]] = {}
        self._bytes = 0
        self._closed = False
        #: How many wait now.
        self.waiting = 0

    @property
    def on(self) -> bool:
        return self._seconds > 0

    def deadline(self) -> float:
        """Monotonic time until which a request that begins to wait now may do so."""
        return time.monotonic() + self._seconds

    def has_line(self, capability: str, model: str | None) -> bool:
        """Whether somebody waits for the same, who comes first."""
        return (capability, model) in self._lines

    async def wait(self, line: Line, tried: Tried, *, size: int, until: float) -> None:
        """Return when there is a worker to be leased for this request, which is then leased at once.

        ``size`` is that of its body in bytes. Raises NoWorker when there is none by ``until``, or no room to
        wait, and Draining. Whatever interrupts it, it leaves the line.
        """
        if self._closed:
            raise _draining()
        if self.waiting >= self._most or self._bytes + size > self._most_bytes:
            self._counts.not_held("full")
            raise NoWorker("no worker is available, and too many requests wait for one; please try again")
        waiter = _Waiter(line, tried, size)
        began = time.monotonic()
        timer = asyncio.get_running_loop().call_later(until - began, self._expire, waiter)
        self._enter(waiter)
        try:
            await waiter.signal
        finally:
            timer.cancel()
            self._leave(waiter)
            self._counts.waited(time.monotonic() - began)
        if waiter.failure is not None:
            raise waiter.failure

    def close(self) -> None:
        """The gateway drains: nobody waits any more."""
        self._closed = True
        for line in tuple(self._lines.values()):
            for waiter in tuple(line):
                self._turn(waiter, _draining())

    async def serve(self) -> None:
        """Call those whose turn it is, for ever."""
        with self._fleet.follow() as changes:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(GLANCE):
                        await changes.get()
                forget(changes)
                while self._round():  # noqa: ASYNC110 - it is a pace, nothing is waited for
                    await asyncio.sleep(PACE)

    def _round(self) -> bool:
        """Call as many as may be called at once; True if there are workers for more."""
        return any([self._call(tuple(line)) for line in tuple(self._lines.values())])

    def _call(self, line: Collection[_Waiter]) -> bool:
        left: int | None = None
        for waiter in line:
            if not waiter.in_line:
                continue  # it left as another was called
            workers = self._workers_for(waiter)
            if not workers:
                if waiter.tried:
                    continue  # there may be one for those behind
                return False
            left = ROUND * workers if left is None else left
            if not left:
                return True
            left -= 1
            self._turn(waiter)
        return False

    def _workers_for(self, waiter: _Waiter) -> int:
        try:
            return len(self._fleet.fit(*waiter.line, excluded(waiter.tried)))
        except (InvalidRequest, UnknownModel):
            return 1  # it will be told so when it asks

    def _expire(self, waiter: _Waiter) -> None:
        self._counts.not_held("timeout")
        self._turn(waiter, NoWorker("no worker became available in time; please try again"))

    def _turn(self, waiter: _Waiter, failure: GatewayError | None = None) -> None:
        """Let it go on; when this returns, it has leased its worker."""
        if not waiter.in_line:
            return
        self._leave(waiter)
        waiter.failure = failure
        waiter.signal.fire()

    def _enter(self, waiter: _Waiter) -> None:
        self._lines.setdefault(waiter.line, {})[waiter] = None
        waiter.in_line = True
        self._bytes += waiter.size
        self.waiting += 1

    def _leave(self, waiter: _Waiter) -> None:
        if not waiter.in_line:
            return
        waiter.in_line = False
        line = self._lines[waiter.line]
        del line[waiter]
        self._bytes -= waiter.size
        self.waiting -= 1
        if not line:
            del self._lines[waiter.line]


def _draining() -> Draining:
    return Draining("the gateway is shutting down; please try again elsewhere")
