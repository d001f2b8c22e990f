"""Probe workers, and decide from their answers and from their replies to requests what state they are in.

Owns: when a worker is probed, and what the result means for its state. Must never enter: a dialect (formats
say what to ask and read the answers), the table of states, the data plane.

The rules, each with the methods of ``Health`` that apply it:

1. A refused connection makes a worker dead at once (``_probe``; ``report_refused`` for requests and calls).
   A failed probe makes it suspect, the second one in a row dead (``_probe``). A good probe clears both
   (``_on_alive``).
2. A probe without an answer does not count while tokens of the worker arrive: it is slow, but alive. One with
   a bad answer makes the worker suspect even then, but not dead (``_probe``).
3. 429 and 503 make a worker busy for a time (``report_busy``). What other replies mean for its state is the
   matter of ``gateway.fleet.health.outliers``; a good probe does not end an ejection (``_on_alive``).
4. Each worker is asked at every interval whether it takes requests, whatever its replies are: an engine that
   is ending goes on accepting requests, and never exits as long as it gets some (``_watch``).
5. A worker that reports that it takes no requests is busy. If tokens of it still arrive after that, it is not
   paused but ending, and gets no more requests (``_on_not_ready``).
6. A worker is asked for its description with every probe if it does not serve, if something of it has just
   failed, so that another process may serve its URL, if it has adapters, which a restart takes away, or if
   its description alone would show a pause; any other one with every sixth (``_asks_all``).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from gateway.fleet.card import complete
from gateway.fleet.health.model_config import ModelConfigs
from gateway.fleet.health.outliers import OutlierDetector
from gateway.fleet.health.probe import PROBE_TIMEOUT, Looped, NotAsked, Unreachable, ask, interview
from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource, WorkerEvent, WorkerState
from gateway.fleet.worker import NEVER, Worker
from gateway.formats.base import AnyFormat
from gateway.formats.optional import WorkerHealth
from gateway.loop.tasks import Tasks

log = logging.getLogger(__name__)

#: Seconds between two probes of a worker that is not ready. A worker away for t seconds is probed every t/10
#: seconds, but not more often than RECOVERY_INTERVAL and not less often than LONGEST_INTERVAL.
RECOVERY_INTERVAL, LONGEST_INTERVAL = 0.5, 5.0
#: Failed probes in a row that make a worker dead.
MAX_FAILED_PROBES = 2
#: A worker that serves is asked to describe itself on every n-th probe, else for its health alone.
DESCRIBE_EVERY = 6
#: A worker that is reported again and again is not probed more often than this, in seconds.
MIN_INTERVAL = 0.05
#: How long a 429 or 503 makes a worker busy, in seconds, unless its Retry-After is longer, and at most.
BUSY_SECONDS, BUSY_LIMIT = 1.0, 30.0

#: Most seconds that ``describe`` waits, and the seconds between two rounds of ``look_again``.
DESCRIBE_TIMEOUT, LOOK_INTERVAL = 5.0, 1.0
#: Tokens that arrive so many seconds after a worker first reported that it takes no requests are of an engine
#: that is ending: one that was paused has sent its last tokens by then.
ENDING_AFTER = 1.0

_SERVING = (WorkerState.READY, WorkerState.BUSY, WorkerState.SUSPECT, WorkerState.CORDONED)


@dataclass(slots=True, eq=False)
class _Watch:
    """The probing of one worker. ``due`` is set when the next probe should not wait for its time, and
    ``describe`` when it should ask for everything."""

    due: asyncio.Event = field(default_factory=asyncio.Event)
    describe: bool = True
    task: asyncio.Task[None] | None = None
    #: Resolved once the worker was asked to describe itself; what is added later waits for the next time.
    described: list[asyncio.Future[None]] = field(default_factory=list)
    #: Monotonic time since when the worker does not serve.
    away_since: float | None = None


def seconds_of(retry_after: bytes | None, now: datetime) -> float | None:
    """Return the seconds that a ``Retry-After`` means at ``now``, a number or a date (RFC 9110, 10.2.3)."""
    if retry_after is None:
        return None
    if retry_after.isdigit():
        return float(retry_after)
    try:
        date = parsedate_to_datetime(retry_after.decode("ascii"))
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds())


class _BadHealth(str):
    """What is wrong with a worker that answered its health probe itself."""


class Health:
    """The probing of every worker of a fleet.

    ``interval`` is the seconds between two probes of a worker that serves; 0: it is probed only after a
    failure. ``answer_timeout`` is the seconds within which a probe request must be answered. ``first``: this
    is the only process of the gateway, or the one that sends what one of them sends (``ProbeRequest.once``).
    ``on_unreachable`` is called with a worker at whose URL nothing listens any more.
    """

    def __init__(  # noqa: PLR0913 - its settings, and whom it reports to
        self,
        fleet: Fleet,
        formats: Iterable[AnyFormat],
        interval: float,
        *,
        recovery: float = RECOVERY_INTERVAL,
        answer_timeout: float = PROBE_TIMEOUT,
        first: bool = True,
        on_unreachable: Callable[[Worker], object] = lambda worker: None,
    ) -> None:
        self._fleet = fleet
        self._formats: Mapping[str, AnyFormat] = {format.name: format for format in formats}
        self._interval = interval
        self._recovery = min(interval, recovery) if interval else recovery
        self._answer_timeout = answer_timeout
        self._first = first
        self._on_unreachable = on_unreachable
        self._spread = random.Random()
        self._configs = ModelConfigs()
        self._tasks = Tasks()
        self._watches: dict[Worker, _Watch] = {}
        #: The round of ``look_again`` that has not begun, and the monotonic time at which the last one began.
        self._next_look: asyncio.Task[None] | None = None
        self._looked_at = NEVER
        #: Takes in how each request to a worker ended.
        self.outliers = OutlierDetector(fleet, self._probe_soon)

    # -- what others report

    def watch(self, worker: Worker) -> None:
        """Probe ``worker`` now and from now on; if it is watched already, let it describe itself soon."""
        watch = self._watches.get(worker)
        if watch is not None:
            watch.describe = True
            return watch.due.set()
        watch = self._watches[worker] = _Watch()
        watch.task = self._tasks.keep_running(lambda: self._watch(worker, watch), f"probe {worker.url}")

    def forget(self, worker: Worker) -> None:
        """Stop probing ``worker``, in the middle of a probe if need be. Unknown workers are ignored."""
        watch = self._watches.pop(worker, None)
        if watch is not None and watch.task is not None:
            watch.task.cancel()
            _resolve(watch.described)

    def check_reachable(self, worker: Worker) -> None:
        """Ask a worker that left the fleet once, and report it as unreachable if nothing listens there."""
        self._tasks.spawn(self._check_reachable(worker), f"last probe of {worker.url}")

    def report_refused(self, worker: Worker) -> None:
        """A request or a call met a refused connection: the worker is dead until a probe is answered."""
        if worker.state is not WorkerState.JOINING:
            self._fleet.apply_event(worker, WorkerEvent.DIE, "could not be reached")
        self._probe_soon(worker)

    def report_busy(self, worker: Worker, status: int, retry_after: bytes | None) -> None:
        """A request was answered with 429 or 503, and with this Retry-After."""
        if worker.state not in _SERVING:
            return  # a late reply of a worker that was found dead, or removed
        vitals = worker.vitals
        wait = seconds_of(retry_after, datetime.now(UTC))
        seconds = BUSY_SECONDS * 2**vitals.refusals if wait is None else max(wait, BUSY_SECONDS)
        if worker.state is not WorkerState.BUSY:
            vitals.refusals = min(vitals.refusals + 1, 16)  # no pause needs more doublings
        vitals.busy_until = time.monotonic() + min(seconds, BUSY_LIMIT)
        before = worker.state
        self._fleet.apply_event(worker, WorkerEvent.FULL, f"it answered {status}")
        if worker.state is not before:
            self._probe_soon(worker)  # busy workers have another interval

    async def describe(self, worker: Worker) -> None:
        """Ask ``worker`` what it serves. Return when that is known, or after DESCRIBE_TIMEOUT."""
        watch = self._watches.get(worker)
        if watch is None:
            return
        described: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watch.described.append(described)
        watch.describe = True
        watch.due.set()
        await asyncio.wait([described], timeout=DESCRIBE_TIMEOUT)

    async def look_again(self) -> None:
        """Ask all workers what they serve. Callers share a round; LOOK_INTERVAL lies between two."""
        if self._next_look is None:
            self._next_look = self._tasks.spawn(self._look(), "asking for an unknown model")
        await asyncio.wait([self._next_look])

    async def _look(self) -> None:
        await asyncio.sleep(self._looked_at + LOOK_INTERVAL - time.monotonic())
        # A caller from now on may ask for something that was loaded after a worker has answered.
        self._next_look, self._looked_at = None, time.monotonic()
        await asyncio.gather(*map(self.describe, self._fleet.workers))

    async def stop(self) -> None:
        """End all probing."""
        self._watches.clear()
        await self._tasks.stop()
        self._configs.close()

    def _probe_soon(self, worker: Worker) -> None:
        watch = self._watches.get(worker)
        if watch is not None:
            watch.due.set()

    async def _check_reachable(self, worker: Worker) -> None:
        request = next(iter(self._formats.values())).health
        with suppress(NotAsked, Looped):
            try:
                await ask(worker, request, answer_timeout=self._answer_timeout, first_contact=True)
            except Unreachable as fault:
                if fault.nothing_listens:
                    self._on_unreachable(worker)

    # -- the loop of one worker

    async def _watch(self, worker: Worker, watch: _Watch) -> None:
        """Probe ``worker`` until it is forgotten."""
        count = 0
        while True:
            describe = watch.describe or count % DESCRIBE_EVERY == 0 or _asks_all(worker)
            watch.describe = False
            waiting, watch.described = watch.described, []
            try:
                await self._probe(worker, describe=describe)
            finally:
                _resolve(waiting)
            count += 1
            await _wait(watch.due, self._pause(worker, watch))

    def _pause(self, worker: Worker, watch: _Watch) -> float | None:
        """Return the seconds until the next probe; None: it waits for a report."""
        now = time.monotonic()
        if worker.state in (WorkerState.JOINING, WorkerState.DEAD):
            watch.away_since = watch.away_since or now
            return max(self._recovery, min(0.1 * (now - watch.away_since), LONGEST_INTERVAL))
        watch.away_since = None
        if worker.reports_paused:
            return self._interval or LONGEST_INTERVAL
        if worker.state is WorkerState.BUSY:
            until = max(worker.vitals.busy_until, worker.vitals.ejected_until)
            return min(max(2 * self._recovery, until - now), LONGEST_INTERVAL)
        if worker.state is WorkerState.SUSPECT:
            return min(max(self._recovery, worker.vitals.ejected_until - now), LONGEST_INTERVAL)
        if CordonSource.WEIGHTS in worker.cordons:
            return 2 * self._recovery
        # Workers that were registered together should not be probed together from then on.
        return self._interval * self._spread.uniform(0.9, 1.1) or None

    async def _probe(self, worker: Worker, *, describe: bool) -> None:
        """Ask ``worker``, and apply what follows for its state."""
        began = time.monotonic()
        # Gathered, as a format that raises on an answer must not end the loop.
        [fault] = await asyncio.gather(self._ask(worker, describe=describe), return_exceptions=True)
        if fault is None:
            return
        if isinstance(fault, NotAsked):
            return log.warning("worker %s was not probed: %s", worker.url, fault)
        if isinstance(fault, Looped):
            return self._fleet.apply_event(worker, WorkerEvent.CANNOT, str(fault))
        if isinstance(fault, Unreachable):
            self._fleet.apply_event(worker, WorkerEvent.DIE, str(fault))
            if fault.nothing_listens:
                self._on_unreachable(worker)
            return
        if isinstance(fault, BaseException):
            log.error("a probe of worker %s failed", worker.url, exc_info=fault)
            fault = "its answers could not be read"
        vitals = worker.vitals
        answered = isinstance(fault, _BadHealth)
        alive = vitals.last_reply_at > (began - self._interval if answered else began)
        if answered or not alive:
            vitals.failed_probes += 1
            dead = vitals.failed_probes >= MAX_FAILED_PROBES and not alive
            self._fleet.apply_event(worker, WorkerEvent.DIE if dead else WorkerEvent.DOUBT, str(fault))

    async def _ask(self, worker: Worker, *, describe: bool) -> str | None:
        """Ask ``worker``, apply its answers, and return what is wrong where one is missing or bad.

        Raises Unreachable, NotAsked, Looped, and whatever a format raises on an answer.
        """
        if describe and (fault := await self._describe(worker)) is not None:
            return fault
        if (why := self._why_not_usable(worker)) is not None:
            worker.vitals.failed_probes = 0
            self._fleet.apply_event(worker, WorkerEvent.CANNOT, why)
            return None
        format = next(self._formats[name] for name, info in worker.infos.items() if info.usable)
        reply = await ask(worker, format.health, answer_timeout=self._answer_timeout)
        if reply is None:
            return "its health probe failed"
        health = format.read_health(reply)
        if health is WorkerHealth.BAD:
            return _BadHealth(f"its health probe was answered with {reply.status}")
        if health is WorkerHealth.GOOD and not worker.reports_paused:
            self._on_alive(worker)
        else:
            self._on_not_ready(worker)
        if worker.state in _SERVING:
            await self._read_load(worker)
        return None

    async def _describe(self, worker: Worker) -> str | None:
        """Ask ``worker`` what it is and serves. Return what is wrong if its answers do not show it."""
        serving = worker.state in _SERVING
        found = await interview(
            worker, self._formats.values(), answer_timeout=self._answer_timeout, first_contact=not serving
        )
        if found is None and worker.declared_format not in (None, *self._formats):
            return f"there is no format {worker.declared_format!r}, which it was declared to speak"
        if found is None:
            return "it gave no answer to any probe"
        if serving and found.missing and not any(info.usable for info in found.infos.values()):
            # A busy worker may leave one request unanswered; it is not another server because of that, nor
            # dead as long as it answers its health probe.
            suspect = worker.state is WorkerState.SUSPECT
            return None if suspect else f"it gave no answer to {found.missing[0]}"
        infos = await self._configs.complete(found.infos)
        if serving and found.missing:
            # Without the answer to one request it is still the same engine.
            infos = {name: complete(info, worker.infos.get(name)) for name, info in infos.items()}
        self._fleet.describe(worker, infos)
        return None

    def _why_not_usable(self, worker: Worker) -> str | None:
        if any(info.usable for info in worker.infos.values()):
            kind = worker.record.worker_type
            return None if kind == "regular" else f"it was registered as the {kind} half of a pair"
        if worker.infos:
            return "; ".join(info.reason for info in worker.infos.values())
        return f"it does not speak {worker.declared_format or ' or '.join(self._formats)}"

    async def _read_load(self, worker: Worker) -> None:
        """Note the load that ``worker`` reports. A request that it does not answer with a load is not sent
        again. If it answers none, only this gateway's own requests count."""
        requests = [
            (self._formats[name], request)
            for name, info in worker.infos.items()
            if info.usable
            for request in self._formats[name].loads
            if self._first or not request.once
        ]
        for index in range(worker.vitals.load_request, len(requests)):
            format, request = requests[index]
            before = worker.in_flight
            reply = await ask(worker, request, answer_timeout=self._answer_timeout)
            if reply is None:
                return
            if (load := format.read_load(request, reply)) is not None:
                worker.vitals.reported, worker.vitals.load_request = load, index
                # Own requests may have begun or ended while it answered; none of them is another gateway's.
                own = max(before, worker.in_flight)
                worker.vitals.foreign_requests = max(0, load.running + load.waiting - own)
                return
        vitals = worker.vitals
        vitals.reported, vitals.foreign_requests, vitals.load_request = None, 0, len(requests)

    def _on_alive(self, worker: Worker) -> None:
        """A probe was good: the worker serves, unless it is busy for longer or is ejected."""
        vitals, now = worker.vitals, time.monotonic()
        vitals.failed_probes, vitals.not_ready_since = 0, None
        if worker.in_trial:
            self.outliers.check_trial(worker, now)
        # A worker that became suspect while it was busy is busy for no shorter time.
        busy = worker.state in (WorkerState.BUSY, WorkerState.SUSPECT) and now < vitals.busy_until
        if now >= vitals.ejected_until and not busy:
            self._fleet.apply_event(worker, WorkerEvent.SERVES)

    def _on_not_ready(self, worker: Worker) -> None:
        """A probe was answered, by a worker that takes no requests: it is paused, or ending."""
        vitals, now = worker.vitals, time.monotonic()
        vitals.failed_probes = 0
        if vitals.not_ready_since is None:
            vitals.not_ready_since = now
        if vitals.last_reply_at > vitals.not_ready_since + ENDING_AFTER and not worker.reports_paused:
            self._fleet.apply_event(worker, WorkerEvent.CANNOT, "it takes no new requests: it is ending")
        else:
            self._fleet.apply_event(worker, WorkerEvent.FULL, "it reports that it takes no requests now")


def _asks_all(worker: Worker) -> bool:
    """Return True if the next probe of ``worker`` asks for its description."""
    return (
        worker.state not in _SERVING
        or worker.state is WorkerState.SUSPECT
        or CordonSource.WEIGHTS in worker.cordons
        or any(info.adapters or info.reports_pauses for info in worker.infos.values())
    )


def _resolve(waiting: Iterable[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)


async def _wait(due: asyncio.Event, seconds: float | None) -> None:
    """Wait for ``seconds``; if ``due`` is set, for MIN_INTERVAL at most."""
    try:
        async with asyncio.timeout(seconds):
            await due.wait()
    except TimeoutError:
        return
    await asyncio.sleep(MIN_INTERVAL if seconds is None else min(MIN_INTERVAL, seconds))
    due.clear()
