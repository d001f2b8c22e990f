"""What a process answers for the whole gateway.

Owns: the views of the control plane that look across processes, and the other side of each: what this process
tells when another one asks. Must never enter: the channel, HTTP.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from gateway.formats.base import AnyFormat
from gateway.formats.optional import AbortTarget, EngineId
from gateway.loop.tasks import Tasks
from gateway.prefork.frames import Verb
from gateway.prefork.hub import PATIENCE
from gateway.prefork.peers import SLACK, Peers, PeersUnavailable, Reply, State
from gateway.proxy.aborts import Aborter, WorkerResult
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.snapshot import Snapshot

log = logging.getLogger(__name__)

#: How often a process tells what it has counted, in seconds: what it counts after that dies with it.
COUNT_INTERVAL = 0.25


#: How long to wait for the others' loads, in seconds: what was known last will do if the supervisor is
#: stuck, as whoever asks for the gateway's health takes a late answer for a bad one.
LOADS_WAIT = 0.2


class Aggregate:
    """The gateway as all its processes are."""

    def __init__(self, peers: Peers, metrics: Metrics) -> None:
        self._peers = peers
        self._metrics = metrics
        self._loads: Mapping[str, int] = {}
        peers.answer(Verb.METRICS, self._tell_metrics)
        peers.answer(Verb.LOADS, self._tell_loads)

    @property
    def state(self) -> State:
        """As the supervisor told it last."""
        return self._peers.state

    async def loads(self) -> Mapping[str, int]:
        """Requests that the other processes have in flight, by worker; what was known last if none can
        tell."""
        try:
            answers = await self._peers.ask(Verb.LOADS, within=LOADS_WAIT)
        except PeersUnavailable:
            return self._loads
        total: Counter[str] = Counter()
        for loads in answers.bodies:
            total.update(loads)
        self._loads = total
        return total

    async def metrics(self) -> tuple[bytes, str] | None:
        """One scrape over all, or None: without the others, counters would seem to have fallen."""
        own = self._metrics.snapshot()
        try:
            answers = await self._peers.ask(Verb.METRICS, own.encode())
        except PeersUnavailable as error:
            log.warning("a scrape was not answered: %s", error)
            return None
        others = [Snapshot.of(body) for body in answers.bodies]
        state = self.state
        return self._metrics.render_aggregate(own, others, state.serving, state.restarts)

    async def report(self) -> None:
        """Tell the supervisor, until cancelled, what this process has counted."""
        while True:
            await asyncio.sleep(COUNT_INTERVAL)
            if not self._peers.stuck:
                self.report_now()

    def report_now(self) -> None:
        self._peers.tell(Verb.COUNTED, self._metrics.snapshot().encode())

    def _tell_metrics(self, question: bytes, reply: Reply) -> None:
        reply(self._metrics.snapshot().encode())

    def _tell_loads(self, question: bytes, reply: Reply) -> None:
        reply(json.dumps({url: load for url, load in self._metrics.loads().items() if load}).encode())


class PreforkAborter:
    """Aborts in all processes what an abort call names, whichever of them got the call."""

    def __init__(self, peers: Peers, local: Aborter, formats: Mapping[str, AnyFormat]) -> None:
        self._peers = peers
        self._local = local
        self._formats = formats
        self._tasks = Tasks()
        peers.answer(Verb.ABORT, self._tell)

    async def abort(self, target: AbortTarget, format: AnyFormat) -> Sequence[WorkerResult]:
        """As Aborter.abort; the results of a worker that several processes have requests at are summed."""
        here, elsewhere = await asyncio.gather(
            self._local.abort(target, format), self._abort_elsewhere(target, format)
        )
        return _by_worker([*here, *elsewhere])

    async def close(self) -> None:
        """Stop what other processes asked for."""
        await self._tasks.stop()

    async def _abort_elsewhere(self, target: AbortTarget, format: AnyFormat) -> Sequence[WorkerResult]:
        question = {
            "format": format.name,
            "everything": target.everything,
            "ids": target.ids,
            "spelled": target.engine_ids,
        }
        try:
            answers = await self._peers.ask(
                Verb.ABORT, json.dumps(question).encode(), PATIENCE[Verb.ABORT] + SLACK
            )
        except PeersUnavailable as error:
            return [WorkerResult(None, 0, f"the gateway's other processes could not be told: {error}")]
        results = [WorkerResult(*row) for body in answers.bodies for row in body]
        if answers.missing:
            results.append(
                WorkerResult(None, 0, f"{answers.missing} of the gateway's processes did not answer")
            )
        return results

    def _tell(self, question: bytes, reply: Reply) -> None:
        self._tasks.spawn(self._abort_here(question, reply), "abort for another process")

    async def _abort_here(self, question: bytes, reply: Reply) -> None:
        asked = json.loads(question)
        spelled = tuple(EngineId(*one) for one in asked["spelled"])
        target = AbortTarget(asked["everything"], tuple(asked["ids"]), spelled)
        results = await self._local.abort(target, self._formats[asked["format"]])
        reply(json.dumps([[one.worker, one.aborted, one.error] for one in results]).encode())


def _by_worker(results: Sequence[WorkerResult]) -> Sequence[WorkerResult]:
    """One result per worker, with the first error of each."""
    merged: dict[str | None, WorkerResult] = {}
    for one in results:
        before = merged.get(one.worker)
        if before is not None:
            one = WorkerResult(one.worker, before.aborted + one.aborted, before.error or one.error)
        merged[one.worker] = one
    return list(merged.values())
