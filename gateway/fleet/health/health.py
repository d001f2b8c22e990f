"""Finding out what stands behind a URL, and whether it still does.

Owns: when to probe, and what a probe's result means for a worker. Must never enter: a dialect (formats say
what to ask and read the answers), the table of states, the data plane.

A worker counts as dead when its connections are refused, or when two probes in a row fail; one good probe
clears it. A whole reply to a request is as good as a probe, and tokens that come while a probe fails make up
for it. Statuses of replies never count against a worker: 429 and 503 make it busy.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from gateway.fleet.health.probe import PROBE_TIMEOUT, NotAsked, Unreachable, ask, interview
from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource, WorkerEvent, WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.optional import WorkerHealth
from gateway.loop.tasks import Tasks

log = logging.getLogger(__name__)

#: How often a worker that is not ready is asked again, in seconds. One that has been away for long is asked
#: less often, after a tenth of that time, but at least this often.
RECOVERY_INTERVAL, LONGEST_PAUSE = 0.5, 5.0
#: Failed probes in a row that make a worker dead.
MAX_FAILED_PROBES = 2
#: A worker that serves is asked for its whole description on every n-th probe, else only for its health.
DESCRIBE_EVERY = 6
#: A worker that is suspected again and again is not asked more often than this, in seconds.
BREATHER = 0.05
#: How long a 429 or 503 makes a worker busy, in seconds, unless its Retry-After says longer, and at most.
BUSY_SECONDS, BUSY_LIMIT = 1.0, 30.0

_SERVING = (WorkerState.READY, WorkerState.BUSY, WorkerState.SUSPECT, WorkerState.CORDONED)


@dataclass(slots=True, eq=False)
class _Watched:
    """``bell`` rings when the next probe should not wait for its time, ``whole`` when it should ask all."""

    bell: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    whole: bool = True
    #: Monotonic time since which it does not serve.
    away_since: float | None = None


class Health:
    """Watches every worker of a fleet.

    ``interval`` is the seconds between two probes of a worker that serves; 0: it is asked only when something
    is amiss. ``patience`` is the seconds a question may take.
    """

    def __init__(  # noqa: PLR0913 - its settings, and whom it reports to
        self,
        fleet: Fleet,
        formats: Iterable[AnyFormat],
        interval: float,
        *,
        recovery: float = RECOVERY_INTERVAL,
        patience: float = PROBE_TIMEOUT,
        on_unreachable: Callable[[Worker], object] = lambda worker: None,
    ) -> None:
        self._fleet = fleet
        self._on_unreachable = on_unreachable
        self._formats: Mapping[str, AnyFormat] = {format.name: format for format in formats}
        self._interval = interval
        self._recovery = min(interval, recovery) if interval else recovery
        self._patience = patience
        self._spread = random.Random()
        self._tasks = Tasks()
        self._watches: dict[Worker, _Watched] = {}

    def watch(self, worker: Worker) -> None:
        """Probe ``worker`` now and from now on; one that is watched already, soon and whole."""
        watched = self._watches.get(worker)
        if watched is not None:
            watched.whole = True
            return watched.bell.set()
        watched = self._watches[worker] = _Watched()
        name = f"probe {worker.url}"
        watched.task = self._tasks.keep_running(lambda: self._watch(worker, watched), name)

    def forget(self, worker: Worker) -> None:
        """Stop probing ``worker``, in the middle of a probe if need be. Unknown workers are ignored."""
        watched = self._watches.pop(worker, None)
        if watched is not None and watched.task is not None:
            watched.task.cancel()

    def check_reachable(self, worker: Worker) -> None:
        """It left, and is watched no more: find out once whether anybody is there still."""
        self._tasks.spawn(self._check_reachable(worker), f"last probe of {worker.url}")

    def suspect(self, worker: Worker, *, refused: bool) -> None:
        """The data plane met a failure: a refused connection, or else a broken reply. Probe soon."""
        if worker.state not in (WorkerState.JOINING, WorkerState.DEAD):
            if refused:
                self._fleet.on(worker, WorkerEvent.DIE, "could not be reached")
            else:
                self._fleet.on(worker, WorkerEvent.DOUBT, "a reply of it was broken")
        self._ring(worker)

    def refused(self, worker: Worker, status: int, retry_after: bytes | None) -> None:
        """The worker answered a request with 429 or 503, and this Retry-After."""
        if worker.state not in _SERVING:
            return  # a late word of one that was found dead, or removed
        seconds = float(retry_after) if retry_after is not None and retry_after.isdigit() else BUSY_SECONDS
        worker.busy_until = time.monotonic() + min(max(seconds, BUSY_SECONDS), BUSY_LIMIT)
        before = worker.state
        self._fleet.on(worker, WorkerEvent.FULL, f"it answered {status}")
        if worker.state is not before:
            self._ring(worker)  # the watch has another pace from now on

    async def stop(self) -> None:
        """End all probing."""
        self._watches.clear()
        await self._tasks.stop()

    def _ring(self, worker: Worker) -> None:
        watched = self._watches.get(worker)
        if watched is not None:
            watched.bell.set()

    # -- one worker

    async def _check_reachable(self, worker: Worker) -> None:
        format = next(iter(self._formats.values()))
        with suppress(NotAsked):
            try:
                await ask(worker, format.health, patience=self._patience, first_contact=True)
            except Unreachable as fault:
                if fault.unreachable:
                    self._on_unreachable(worker)

    async def _watch(self, worker: Worker, watched: _Watched) -> None:
        """Probe for ever."""
        asked_at, rounds, hurried = time.monotonic(), 0, True
        while True:
            whole = watched.whole or worker.state not in _SERVING or rounds % DESCRIBE_EVERY == 0
            whole = whole or CordonSource.WEIGHTS in worker.cordons or worker.says_paused
            watched.whole = False
            if whole or hurried or worker.last_reply_at <= asked_at:
                await self._probe(worker, whole=whole)
            else:
                self._alive(worker)  # its replies tell as much as a probe would
            asked_at, rounds = time.monotonic(), rounds + 1
            hurried = await _rang(watched.bell, self._pause(worker, watched))

    def _pause(self, worker: Worker, watched: _Watched) -> float | None:
        """Seconds until the next probe; None: until the bell rings."""
        now = time.monotonic()
        if worker.state in (WorkerState.JOINING, WorkerState.DEAD):
            watched.away_since = watched.away_since or now
            return max(self._recovery, min(0.1 * (now - watched.away_since), LONGEST_PAUSE))
        watched.away_since = None
        if worker.says_paused:
            return self._interval or LONGEST_PAUSE
        if worker.state is WorkerState.BUSY:
            return max(2 * self._recovery, worker.busy_until - now)
        if worker.state is WorkerState.SUSPECT:
            return self._recovery
        if CordonSource.WEIGHTS in worker.cordons:
            return 2 * self._recovery
        # Workers that were registered together are not to be probed together for ever.
        return self._interval * self._spread.uniform(0.9, 1.1) or None

    async def _probe(self, worker: Worker, *, whole: bool) -> None:
        began = time.monotonic()
        [fault] = await asyncio.gather(self._examine(worker, whole=whole), return_exceptions=True)
        if isinstance(fault, NotAsked):
            log.warning("worker %s was not probed: %s", worker.url, fault)
        elif isinstance(fault, Unreachable):
            self._fleet.on(worker, WorkerEvent.DIE, str(fault))
            if fault.unreachable:
                self._on_unreachable(worker)
        elif isinstance(fault, str):
            self._struck(worker, began, fault)
        elif fault is not None:
            # A format that cannot read an answer must not end the watch.
            log.error("a probe of worker %s failed", worker.url, exc_info=fault)
            self._struck(worker, began, "its answers could not be read")

    async def _examine(self, worker: Worker, *, whole: bool) -> str | None:
        """Ask, and draw the conclusions of an answer; what is amiss where there is none."""
        fault = await (self._describe(worker) if whole else self._check(worker))
        if fault is None and worker.state in _SERVING:
            await self._refresh_load(worker)
        return fault

    async def _check(self, worker: Worker) -> str | None:
        vital = await self._vital(worker)
        if vital is WorkerHealth.BAD:
            return "its health probe failed"
        if vital is WorkerHealth.GOOD and not worker.says_paused:
            self._alive(worker)
        else:
            worker.failed_probes = 0
            self._fleet.on(worker, WorkerEvent.FULL, "it says that it takes no requests now")
        return None

    async def _vital(self, worker: Worker) -> WorkerHealth:
        for name, info in worker.infos.items():
            if info.usable:
                format = self._formats[name]
                reply = await ask(worker, format.health, patience=self._patience)
                return WorkerHealth.BAD if reply is None else format.read_health(reply)
        return WorkerHealth.BAD

    async def _describe(self, worker: Worker) -> str | None:
        away = worker.state not in _SERVING
        found = await interview(worker, self._formats.values(), patience=self._patience, first_contact=away)
        if found is None and worker.only not in (None, *self._formats):
            return f"there is no format {worker.only!r}, which its owner says that it speaks"
        if found is None:
            return "it gave no answer to any probe"
        usable = any(info.usable for info in found.infos.values())
        if not usable and found.missing and worker.state in _SERVING:
            # A busy worker that skips one question is not another one.
            return f"it gave no answer to {found.missing[0]}"
        self._fleet.describe(worker, found.infos)
        half = worker.record.worker_type
        if usable and half == "regular":
            return await self._check(worker)
        worker.failed_probes = 0
        why = f"it was registered as the {half} half of a pair" if usable else self._why_unusable(worker)
        self._fleet.on(worker, WorkerEvent.CANNOT, why)
        return None

    def _why_unusable(self, worker: Worker) -> str:
        if worker.infos:
            return "; ".join(info.reason for info in worker.infos.values())
        return f"it does not speak {worker.only or ' or '.join(self._formats)}"

    async def _refresh_load(self, worker: Worker) -> None:
        """Note what it says of its load; one that does not tell has none but what is known here."""
        questions = [
            (self._formats[name], question)
            for name, info in worker.infos.items()
            if info.usable
            for question in self._formats[name].loads
        ]
        for index in range(worker.load_question, len(questions)):
            format, question = questions[index]
            before = worker.in_flight
            reply = await ask(worker, question, patience=self._patience)
            if reply is None:
                return
            if (load := format.read_load(question, reply)) is not None:
                worker.reported, worker.load_question = load, index
                # Own requests may have come or gone while it answered; none of them is another's.
                own = max(before, worker.in_flight)
                worker.others = max(0, load.running + load.waiting - own)
                return
        worker.reported, worker.others, worker.load_question = None, 0, len(questions)

    def _alive(self, worker: Worker) -> None:
        worker.failed_probes = 0
        if worker.state is not WorkerState.BUSY or time.monotonic() >= worker.busy_until:
            self._fleet.on(worker, WorkerEvent.SERVES)

    def _struck(self, worker: Worker, began: float, reason: str) -> None:
        if worker.last_reply_at > began:
            return  # tokens came meanwhile: it is slow to answer, not away
        worker.failed_probes += 1
        event = WorkerEvent.DOUBT if worker.failed_probes < MAX_FAILED_PROBES else WorkerEvent.DIE
        self._fleet.on(worker, event, reason)


async def _rang(bell: asyncio.Event, seconds: float | None) -> bool:
    """Wait ``seconds``, or a short while if the bell rings; True if it did."""
    try:
        async with asyncio.timeout(seconds):
            await bell.wait()
    except TimeoutError:
        return False
    await asyncio.sleep(BREATHER if seconds is None else min(BREATHER, seconds))
    bell.clear()
    return True
