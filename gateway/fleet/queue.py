"""Requests that wait for a worker: for one that is usable, or for one that has room.

Owns: their order, how many there may be, and whose turn it is. Must never enter: the choice of a worker, a
dialect, what a request is.

Who waits for the same model waits in line; who waits for another one has a line of its own. A worker that
becomes usable is not given a whole line at once: those that come up a moment later are to have their share.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Protocol

from gateway.errors import GatewayError, InvalidRequest, NoWorker, Overloaded, UnknownModel
from gateway.fleet.changes import forget
from gateway.fleet.registry import Fleet
from gateway.fleet.worker import Worker
from gateway.loop.stepper import Wakeup

#: What may go to each usable worker in one round, and seconds between two rounds.
ROUND, PACE = 32, 0.01
#: Seconds after which the fleet is looked at though nobody told of a change.
GLANCE = 1.0

#: Workers that a request must not be sent to any more, and which life of each it was sent to.
Tried = Mapping[Worker, object]
_NEVER_TRIED: Tried = MappingProxyType({})
#: A capability and a model; None: any.
Wanted = tuple[str, str | None]


class Counts(Protocol):
    """Who is told what becomes of those that wait."""

    def waited(self, seconds: float) -> None: ...

    def queue_refused(self, reason: str) -> None:
        """One was turned away: ``full`` or ``timeout``."""
        ...


@dataclass(slots=True, eq=False)
class _Waiter:
    line: _Line
    tried: Tried
    size: int
    until: float
    arrival: int
    signal: Wakeup = field(default_factory=Wakeup)
    timer: asyncio.TimerHandle | None = None
    in_line: bool = False
    failure: GatewayError | None = None


@dataclass(slots=True, eq=False)
class _Line:
    """``gone_at`` is the monotonic time since when no worker is usable for it, None: one is.

    ``retried`` of its waiters must not go to any worker.
    """

    wanted: Wanted
    waiters: OrderedDict[_Waiter, None] = field(default_factory=OrderedDict)
    retried: int = 0
    gone_at: float | None = None

    @property
    def arrival(self) -> int:
        """Of the first in line, who is never away."""
        return next(iter(self.waiters)).arrival


def excluded(tried: Tried) -> Collection[Worker]:
    """Those of ``tried`` that are still the process which it was sent to."""
    return [worker for worker, life in tried.items() if worker.incarnation is life] if tried else ()


class Queue:
    """``seconds`` is how long a request may wait while no worker is usable; 0: not at all. At most
    ``requests`` wait at once, whose bodies have at most ``size`` bytes together.

    Where workers are ``limited`` in what they may have at once, it waits for room as long as it takes.
    """

    def __init__(  # noqa: PLR0913 - its three limits, and what it stands between
        self,
        fleet: Fleet,
        counts: Counts,
        *,
        seconds: float,
        requests: int,
        size: int,
        limited: bool = False,
    ) -> None:
        self._fleet = fleet
        self._counts = counts
        self._seconds = seconds
        self._most = requests
        self._most_bytes = size
        self._limited = limited
        self._lines: dict[Wanted, _Line] = {}
        self._bytes = 0
        self._arrivals = 0
        self._round_due = False
        #: How many wait now.
        self.waiting = 0
        if limited:
            fleet.call_on_release(self._on_release)

    @property
    def on(self) -> bool:
        return self._seconds > 0 or self._limited

    def takes(self, refusal: GatewayError) -> bool:
        """Whether one whom the fleet refused so may wait."""
        return self._seconds > 0 or isinstance(refusal, Overloaded)

    def deadline(self) -> float:
        """Monotonic time until which a request that begins to wait now may do so, if no worker is usable."""
        return time.monotonic() + self._seconds

    def has_line(self, capability: str, model: str | None) -> bool:
        """Whether somebody waits who comes first: for the same, or for what was given back just now."""
        return self._round_due or (capability, model) in self._lines

    async def wait(self, wanted: Wanted, tried: Tried, *, size: int, until: float) -> None:
        """Return when there is a worker to be leased for this request, which is then leased at once.

        ``size`` is that of its body in bytes. Raises NoWorker when none was usable until ``until`` (or for as
        long as one may wait, if there was one meanwhile), and Overloaded when there is no room to wait.
        Whatever interrupts it, it leaves the line.
        """
        if self.waiting >= self._most or self._bytes + size > self._most_bytes:
            self._counts.queue_refused("full")
            raise Overloaded("too many requests wait for a worker; please try again")
        began = time.monotonic()
        waiter = self._enter(wanted, tried, size, until)
        try:
            await waiter.signal
        finally:
            self._leave(waiter)
            self._counts.waited(time.monotonic() - began)
        if waiter.failure is not None:
            raise waiter.failure

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

    def _on_release(self) -> None:
        """Some worker has room. Not here, in the midst of another exchange: one that it calls might end at
        once, and call the next one."""
        if self.waiting and not self._round_due:
            self._round_due = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._round_due = False
        self._round()

    def _round(self) -> bool:
        """Call as many as may be called at once; True if there are workers for more in a moment.

        Lines may want the same workers: the one whose first has waited longest is called first.
        """
        return any([self._call(line) for line in sorted(self._lines.values(), key=lambda each: each.arrival)])

    def _call(self, line: _Line) -> bool:
        workers = self._look(line)
        if workers is None:
            share, room = ROUND, None  # each will be told what is wrong when it asks
        elif workers:
            share, room = ROUND * len(workers), self._fleet.room(workers)
        else:
            return False
        left = share if room is None else min(share, room)
        for waiter in tuple(islice(line.waiters, left + line.retried)):
            if not waiter.in_line or (waiter.tried and not self._has_room(waiter)):
                continue  # it left as another was called, or there may be a worker for those behind
            if not left:
                break
            left -= 1
            self._turn(waiter)
        return not left and bool(line.waiters) and (room is None or room > share)

    def _look(self, line: _Line) -> Collection[Worker] | None:
        """The workers that the line is for, and since when there is none. Where nobody waits for one to come,
        all are told."""
        workers = self._fit(line.wanted, _NEVER_TRIED)
        gone = workers is not None and not workers
        if not gone:
            line.gone_at = None
        elif line.gone_at is None:
            line.gone_at = time.monotonic()
        if self._seconds == 0 and (gone or line.retried):
            for waiter in tuple(line.waiters):
                if gone or (waiter.tried and not self._fit(line.wanted, waiter.tried)):
                    self._turn(waiter, NoWorker("no worker is available any more; please try again"))
        return workers

    def _fit(self, wanted: Wanted, tried: Tried) -> Collection[Worker] | None:
        """The workers it could go to, if they had room; None: that is no question of waiting."""
        try:
            return self._fleet.fit(*wanted, excluded(tried))
        except (InvalidRequest, UnknownModel):
            return None

    def _has_room(self, waiter: _Waiter) -> bool:
        workers = self._fit(waiter.line.wanted, waiter.tried)
        return workers is None or (bool(workers) and self._fleet.room(workers) != 0)

    def _expire(self, waiter: _Waiter) -> None:
        """Its time is up, unless it waits for room, or the last worker went meanwhile."""
        self._look(waiter.line)
        now, gone_at = time.monotonic(), waiter.line.gone_at
        due = waiter.until if gone_at is None else max(waiter.until, gone_at + self._seconds)
        if self._fit(waiter.line.wanted, waiter.tried):
            due = now + self._seconds
        if due > now:
            loop = asyncio.get_running_loop()
            waiter.timer = loop.call_later(due - now, self._expire, waiter)
            return
        self._counts.queue_refused("timeout")
        self._turn(waiter, NoWorker("no worker became available in time; please try again"))

    def _turn(self, waiter: _Waiter, failure: GatewayError | None = None) -> None:
        """Let it go on; when this returns, it has leased its worker."""
        if not waiter.in_line:
            return
        self._leave(waiter)
        waiter.failure = failure
        waiter.signal.fire()

    def _enter(self, wanted: Wanted, tried: Tried, size: int, until: float) -> _Waiter:
        line = self._lines.get(wanted)
        if line is None:
            line = self._lines[wanted] = _Line(wanted)
            self._look(line)
        self._arrivals += 1
        waiter = _Waiter(line, tried, size, until, self._arrivals)
        if self._seconds > 0:
            delay = max(0.0, until - time.monotonic())
            waiter.timer = asyncio.get_running_loop().call_later(delay, self._expire, waiter)
        line.waiters[waiter] = None
        line.retried += bool(tried)
        waiter.in_line = True
        self._bytes += size
        self.waiting += 1
        return waiter

    def _leave(self, waiter: _Waiter) -> None:
        if not waiter.in_line:
            return
        waiter.in_line = False
        if waiter.timer is not None:
            waiter.timer.cancel()
        line = waiter.line
        del line.waiters[waiter]
        line.retried -= bool(waiter.tried)
        self._bytes -= waiter.size
        self.waiting -= 1
        if not line.waiters:
            del self._lines[line.wanted]
