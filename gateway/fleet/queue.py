"""The request queue: requests that wait for a usable worker, or for one with a free slot.

Owns: their order, how many there may be, and whose turn it is. Must never enter: the choice of a worker, a
dialect, what a request is.

Requests for the same capability and model form one line, first come, first served; those for another model
have a line of their own. When a worker becomes usable, it does not get all of a line at once: workers that
become usable a moment later should get their share.
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

#: How many requests go to each usable worker in one round, and seconds between two rounds.
ROUND, ROUND_INTERVAL = 32, 0.01
#: Seconds after which the fleet is looked at although no change was reported.
LOOK_INTERVAL = 1.0

#: Workers that a request must not be sent to: with the incarnation that it was sent to before, or with the
#: card by which they are too small for it.
Tried = Mapping[Worker, object]
_NEVER_TRIED: Tried = MappingProxyType({})
#: A capability and a model; None: any model.
Wanted = tuple[str, str | None]


class QueueMetrics(Protocol):
    """Counters of what happens in a queue."""

    def waited(self, seconds: float) -> None: ...

    def queue_refused(self, reason: str) -> None:
        """Count a request that was refused because of ``full`` or ``timeout``."""
        ...


@dataclass(slots=True, eq=False)
class _Waiter:
    line: _Line
    tried: Tried
    size: int
    until: float
    arrival: int
    wakeup: Wakeup = field(default_factory=Wakeup)
    timer: asyncio.TimerHandle | None = None
    in_line: bool = False
    failure: GatewayError | None = None


@dataclass(slots=True, eq=False)
class _Line:
    """The requests for one capability and model.

    ``gone_at`` is the monotonic time since when no worker is usable for it; None: one is. ``retried`` is how
    many of its requests must not go to some workers.
    """

    wanted: Wanted
    waiters: OrderedDict[_Waiter, None] = field(default_factory=OrderedDict)
    retried: int = 0
    gone_at: float | None = None

    @property
    def arrival(self) -> int:
        """The arrival of the first request. A line is never empty."""
        return next(iter(self.waiters)).arrival


def excluded(tried: Tried) -> Collection[Worker]:
    """Return the workers of ``tried`` that are still that process, or still have that card."""
    if not tried:
        return ()
    return {worker for worker, why in tried.items() if worker.incarnation is why or worker.card is why}


class Queue:
    """The queue of one process.

    ``seconds`` is how long a request may wait while no worker is usable; 0: not at all. At most ``requests``
    wait at once, whose bodies have at most ``size`` bytes together. If workers are ``limited`` in how many
    requests they have at once, a request waits for a free slot as long as it takes.
    """

    def __init__(  # noqa: PLR0913 - its three limits, and what it stands between
        self,
        fleet: Fleet,
        metrics: QueueMetrics,
        *,
        seconds: float,
        requests: int,
        size: int,
        limited: bool = False,
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._seconds = seconds
        self._max_requests = requests
        self._max_bytes = size
        self._limited = limited
        self._lines: dict[Wanted, _Line] = {}
        self._bytes = 0
        self._arrivals = 0
        self._round_due = False
        #: How many requests wait now.
        self.waiting = 0
        if limited:
            fleet.call_on_release(self._on_release)

    @property
    def enabled(self) -> bool:
        return self._seconds > 0 or self._limited

    def accepts(self, refusal: GatewayError) -> bool:
        """Return True if a request that the fleet refused because of ``refusal`` may wait."""
        return self._seconds > 0 or isinstance(refusal, Overloaded)

    def deadline(self) -> float:
        """Return the monotonic time until which a request queued now waits while no worker is usable."""
        return time.monotonic() + self._seconds

    def has_earlier(self, capability: str, model: str | None) -> bool:
        """Return True if an earlier request is queued for the same capability and model, or a slot that
        became free is about to be given to a queued one."""
        return self._round_due or (capability, model) in self._lines

    async def wait(self, wanted: Wanted, tried: Tried, *, size: int, until: float) -> None:
        """Return when there is a worker for this request, which leases it before anything else runs.

        ``size`` is that of its body in bytes. Raises NoWorker if none was usable until ``until`` (or, if one
        was usable meanwhile, for ``seconds``), and Overloaded if the queue is full. The request leaves the
        queue however this ends.
        """
        if self.waiting >= self._max_requests or self._bytes + size > self._max_bytes:
            self._metrics.queue_refused("full")
            raise Overloaded("too many requests wait for a worker; please try again")
        began = time.monotonic()
        waiter = self._enter(wanted, tried, size, until)
        try:
            await waiter.wakeup
        finally:
            self._leave(waiter)
            self._metrics.waited(time.monotonic() - began)
        if waiter.failure is not None:
            raise waiter.failure

    async def serve(self) -> None:
        """Give queued requests their turn, until cancelled."""
        with self._fleet.follow() as changes:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_INTERVAL):
                        await changes.get()
                forget(changes)
                while self._round():  # noqa: ASYNC110 - it is a pace, nothing is waited for
                    await asyncio.sleep(ROUND_INTERVAL)

    def _on_release(self) -> None:
        """Begin a round in the next iteration of the loop. Here another exchange is ending: one that gets its
        turn might end at once as well, and so on without an end to the recursion."""
        if self.waiting and not self._round_due:
            self._round_due = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._round_due = False
        self._round()

    def _round(self) -> bool:
        """Give their turn to as many as may go at once; return True if there are workers for more in a
        moment.

        Lines may want the same workers: the one whose first request has waited longest goes first.
        """
        lines = sorted(self._lines.values(), key=lambda line: line.arrival)
        return any([self._serve_line(line) for line in lines])

    def _serve_line(self, line: _Line) -> bool:
        """Give their turn to the first requests of ``line``; return True if more may follow in a moment.

        ``share`` is the pace: the most that go in one round. ``free`` is the number of free slots, None:
        slots are not limited. The smaller of the two applies. Requests that must not go to some workers
        (``line.retried``) are looked at in addition, as they may have to be passed over.
        """
        workers = self._eligible(line)
        if workers is None:
            share, free = ROUND, None  # each gets the error when it asks for its lease
        elif workers:
            share, free = ROUND * len(workers), self._fleet.free_slots(workers)
        else:
            return False
        remaining = share if free is None else min(share, free)
        for waiter in tuple(islice(line.waiters, remaining + line.retried)):
            if not waiter.in_line or (waiter.tried and not self._has_free_slot(waiter)):
                continue  # it left when another one got its turn, or later ones may have a worker
            if not remaining:
                break
            remaining -= 1
            self._give_turn(waiter)
        return not remaining and bool(line.waiters) and (free is None or free > share)

    def _eligible(self, line: _Line) -> Collection[Worker] | None:
        """Return the workers for ``line``, and note since when there is none. If requests do not wait for a
        worker to become usable, all of them are refused then."""
        workers = self._eligible_for(line.wanted, _NEVER_TRIED)
        gone = workers is not None and not workers
        if not gone:
            line.gone_at = None
        elif line.gone_at is None:
            line.gone_at = time.monotonic()
        if self._seconds == 0 and (gone or line.retried):
            for waiter in tuple(line.waiters):
                if gone or (waiter.tried and not self._eligible_for(line.wanted, waiter.tried)):
                    self._give_turn(waiter, NoWorker("no worker is available any more; please try again"))
        return workers

    def _eligible_for(self, wanted: Wanted, tried: Tried) -> Collection[Worker] | None:
        """Return the workers that could serve it if they had a free slot; None: waiting does not help it."""
        try:
            return self._fleet.eligible(*wanted, excluded(tried))
        except (InvalidRequest, UnknownModel):
            return None

    def _has_free_slot(self, waiter: _Waiter) -> bool:
        workers = self._eligible_for(waiter.line.wanted, waiter.tried)
        return workers is None or (bool(workers) and self._fleet.free_slots(workers) != 0)

    def _expire(self, waiter: _Waiter) -> None:
        """Refuse a request whose time is over, unless it waits for a slot, or its last worker went later."""
        # There are three cases. Workers are usable for it, but have no free slot: look again in ``seconds``.
        # No worker is usable for its line: its time is over at ``until``, or ``seconds`` after the last
        # worker went if that is later. Only workers that it was sent to before are usable: its time is over
        # at ``until``.
        self._eligible(waiter.line)
        now, gone_at = time.monotonic(), waiter.line.gone_at
        due = waiter.until if gone_at is None else max(waiter.until, gone_at + self._seconds)
        if self._eligible_for(waiter.line.wanted, waiter.tried):
            due = now + self._seconds
        if due > now:
            loop = asyncio.get_running_loop()
            waiter.timer = loop.call_later(due - now, self._expire, waiter)
            return
        self._metrics.queue_refused("timeout")
        self._give_turn(waiter, NoWorker("no worker became available in time; please try again"))

    def _give_turn(self, waiter: _Waiter, failure: GatewayError | None = None) -> None:
        """Let it continue; when this returns, it has leased its worker."""
        if not waiter.in_line:
            return
        self._leave(waiter)
        waiter.failure = failure
        waiter.wakeup.fire()

    def _enter(self, wanted: Wanted, tried: Tried, size: int, until: float) -> _Waiter:
        line = self._lines.get(wanted)
        if line is None:
            line = self._lines[wanted] = _Line(wanted)
            self._eligible(line)
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
