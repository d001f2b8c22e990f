"""Finding out what stands behind a URL, and whether it still does.

Owns: when to probe, and what a probe's result means for a worker's state. Must never enter: a dialect
(formats say what to ask and read the answers), the data plane.

A worker counts as dead when its connections are refused, or when two probes in a row fail; one good probe
clears it. A whole reply to a request is as good as a probe. Statuses of replies never count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

import httpx

from gateway.fleet.probe import NotAsked, Unreachable, ask, interview
from gateway.fleet.registry import Fleet
from gateway.fleet.worker import Worker, WorkerState
from gateway.formats.base import AnyFormat
from gateway.tasks import Tasks

log = logging.getLogger(__name__)

#: How often a worker that is not ready is asked again, in seconds.
RECOVERY_INTERVAL = 0.5
#: Failed probes in a row that make a worker dead.
STRIKES = 2
#: A ready worker is asked for its whole description on every n-th probe, else only for its health.
DESCRIBE_EVERY = 6
#: A worker that is suspected again and again is not asked more often than this, in seconds.
BREATHER = 0.05


@dataclass(frozen=True, slots=True)
class _Watched:
    bell: asyncio.Event
    task: asyncio.Task[None]


class Health:
    """Watches every worker of a fleet. ``interval`` is the seconds between two probes of a ready worker."""

    def __init__(
        self,
        fleet: Fleet,
        formats: Iterable[AnyFormat],
        client: httpx.AsyncClient,
        interval: float,
        *,
        recovery: float = RECOVERY_INTERVAL,
    ) -> None:
        self._fleet = fleet
        self._formats = {format.name: format for format in formats}
        self._client = client
        self._interval = interval
        self._recovery = min(interval, recovery)
        self._tasks = Tasks()
        self._watches: dict[Worker, _Watched] = {}

    def watch(self, worker: Worker) -> None:
        """Probe ``worker`` now and from now on; one that is watched already, soon."""
        watched = self._watches.get(worker)
        if watched is not None:
            return watched.bell.set()
        bell = asyncio.Event()
        task = self._tasks.spawn(self._watch(worker, bell), f"probe {worker.url}")
        self._watches[worker] = _Watched(bell, task)

    def forget(self, worker: Worker) -> None:
        """Stop probing ``worker``, in the middle of a probe if need be. Unknown workers are ignored."""
        watched = self._watches.pop(worker, None)
        if watched is not None:
            watched.task.cancel()

    def suspect(self, worker: Worker, *, refused: bool) -> None:
        """The data plane met a failure: a refused connection, or else a broken reply. Probe soon."""
        if refused and worker.state is WorkerState.READY:
            self._fleet.set_state(worker, WorkerState.DEAD, "could not be reached")
        watched = self._watches.get(worker)
        if watched is not None:
            watched.bell.set()

    async def stop(self) -> None:
        """End all probing and close the client."""
        self._watches.clear()
        await self._tasks.stop()
        await self._client.aclose()

    async def _watch(self, worker: Worker, bell: asyncio.Event) -> None:
        """Probe for ever. ``bell`` rings when the next probe should not wait for its time."""
        loop = asyncio.get_running_loop()
        asked_at, rounds, hurried = loop.time(), 0, True
        while True:
            whole = worker.state is not WorkerState.READY or rounds % DESCRIBE_EVERY == 0
            if whole or hurried or worker.last_reply_at <= asked_at:
                await self._probe(worker, whole=whole)
            else:
                worker.strikes = 0  # its replies tell as much as a probe would
            asked_at, rounds = loop.time(), rounds + 1
            ready = worker.state is WorkerState.READY
            hurried = await _rang(bell, self._interval if ready else self._recovery)

    async def _probe(self, worker: Worker, *, whole: bool) -> None:
        probe = self._describe(worker) if whole else self._check(worker)
        [fault] = await asyncio.gather(probe, return_exceptions=True)
        if isinstance(fault, NotAsked):
            log.warning("worker %s was not probed: %s", worker.url, fault)
        elif isinstance(fault, Unreachable):
            self._unreachable(worker, f"nobody listens: {fault}")
        elif fault is not None:
            # A format that cannot read an answer must not end the watch.
            log.error("a probe of worker %s failed", worker.url, exc_info=fault)
            self._struck(worker, "its answers could not be read")

    async def _check(self, worker: Worker) -> None:
        if not await self._healthy(worker):
            return self._struck(worker, "its health probe failed")
        worker.strikes = 0
        if worker.state is WorkerState.READY:
            worker.reason = ""

    async def _healthy(self, worker: Worker) -> bool:
        for name, info in worker.infos.items():
            if info.usable:
                reply = await ask(self._client, worker, self._formats[name].health)
                # Builds without the health route answer 404, which shows life as well as 200 does.
                return reply is not None and reply.status in (200, 404)
        return False

    async def _describe(self, worker: Worker) -> None:
        found = await interview(self._client, worker, self._formats.values())
        if found is None:
            return self._struck(worker, "it gave no answer to any probe")
        usable = any(info.usable for info in found.infos.values())
        if not usable and found.missing and worker.state is WorkerState.READY:
            # A busy worker that skips one question is not another one.
            return self._struck(worker, f"it gave no answer to {found.missing[0]}")
        worker.strikes = 0
        worker.infos = found.infos
        if usable:
            self._fleet.set_state(worker, WorkerState.READY)
        else:
            self._fleet.set_state(worker, WorkerState.UNUSABLE, self._why_unusable(worker))

    def _why_unusable(self, worker: Worker) -> str:
        if worker.infos:
            return "; ".join(info.reason for info in worker.infos.values())
        return f"it does not speak {worker.only or ' or '.join(self._formats)}"

    def _struck(self, worker: Worker, reason: str) -> None:
        worker.strikes += 1
        if worker.state is WorkerState.JOINING or worker.strikes < STRIKES:
            worker.reason = reason
        elif worker.state is not WorkerState.DEAD:
            self._fleet.set_state(worker, WorkerState.DEAD, reason)

    def _unreachable(self, worker: Worker, reason: str) -> None:
        if worker.state is WorkerState.JOINING:
            worker.reason = reason
        elif worker.state is not WorkerState.DEAD:
            self._fleet.set_state(worker, WorkerState.DEAD, reason)


async def _rang(bell: asyncio.Event, seconds: float) -> bool:
    """Wait ``seconds``, or a short while if the bell rings; True if it did."""
    try:
        async with asyncio.timeout(seconds):
            await bell.wait()
    except TimeoutError:
        return False
    await asyncio.sleep(min(BREATHER, seconds))
    bell.clear()
    return True
