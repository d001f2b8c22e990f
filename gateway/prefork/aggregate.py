"""Metrics, loads and aborts across all processes of the gateway.

Owns: the views of the control plane that cover all processes, and the answers of this process to the same
queries of others. Must never enter: the channel, HTTP.
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
from gateway.prefork.hub import ANSWER_TIMEOUTS
from gateway.prefork.peers import SLACK, GatewayState, Peers, PeersUnavailable, Reply
from gateway.proxy.aborts import Aborter, WorkerResult
from gateway.telemetry.exporter import MetricsExporter
from gateway.telemetry.snapshot import Snapshot

log = logging.getLogger(__name__)

#: Seconds between two reports of this process's counts. Counts after the last report are lost with a process
#: that is killed.
COUNT_INTERVAL = 0.25
#: Seconds to wait for the loads of the others; the last known ones are used after that. A health check that
#: is answered late counts as failed.
LOADS_TIMEOUT = 0.2


class Aggregate:
    """The metrics and loads of all processes together."""

    def __init__(self, peers: Peers, exporter: MetricsExporter) -> None:
        self._peers = peers
        self._exporter = exporter
        self._loads: Mapping[str, int] = {}
        peers.on_query(Verb.METRICS, self._answer_metrics)
        peers.on_query(Verb.LOADS, self._answer_loads)

    @property
    def state(self) -> GatewayState:
        """The state that the supervisor reported last."""
        return self._peers.state

    async def loads(self) -> Mapping[str, int]:
        """Return the number of requests that the other processes have in flight, by worker.

        Without an answer, the last known numbers are returned.
        """
        try:
            answers = await self._peers.ask(Verb.LOADS, within=LOADS_TIMEOUT)
        except PeersUnavailable:
            return self._loads
        total: Counter[str] = Counter()
        for loads in answers.bodies:
            total.update(loads)
        self._loads = total
        return total

    async def metrics(self) -> tuple[bytes, str] | None:
        """Return body and content type of one scrape of all processes.

        Return None if the others cannot be asked: without their part, counters would seem to decrease.
        """
        own = self._exporter.snapshot()
        try:
            answers = await self._peers.ask(Verb.METRICS, own.encode())
        except PeersUnavailable as error:
            log.warning("a scrape was not answered: %s", error)
            return None
        others = [Snapshot.of(body) for body in answers.bodies]
        state = self.state
        return self._exporter.render_aggregate(own, others, state.serving, state.restarts)

    async def report_counts(self) -> None:
        """Report this process's counts to the supervisor again and again, until cancelled."""
        while True:
            await asyncio.sleep(COUNT_INTERVAL)
            if not self._peers.supervisor_stuck:
                self.report_counts_now()

    def report_counts_now(self) -> None:
        self._peers.report(Verb.COUNTS, self._exporter.snapshot().encode())

    def _answer_metrics(self, query: bytes, reply: Reply) -> None:
        reply(self._exporter.snapshot().encode())

    def _answer_loads(self, query: bytes, reply: Reply) -> None:
        reply(json.dumps({url: load for url, load in self._exporter.loads().items() if load}).encode())


class PreforkAborter:
    """An aborter of requests in all processes, whichever of them got the abort call."""

    def __init__(self, peers: Peers, local: Aborter, formats: Mapping[str, AnyFormat]) -> None:
        self._peers = peers
        self._local = local
        self._formats = formats
        self._tasks = Tasks()
        peers.on_query(Verb.ABORT, self._answer)

    async def abort(self, target: AbortTarget, format: AnyFormat) -> Sequence[WorkerResult]:
        """Abort ``target`` as ``Aborter.abort`` does; return one result per worker, summed over processes."""
        here, elsewhere = await asyncio.gather(
            self._local.abort(target, format), self._abort_elsewhere(target, format)
        )
        return _by_worker([*here, *elsewhere])

    async def close(self) -> None:
        """Stop the aborts that other processes asked for."""
        await self._tasks.stop()

    async def _abort_elsewhere(self, target: AbortTarget, format: AnyFormat) -> Sequence[WorkerResult]:
        query = {
            "format": format.name,
            "everything": target.everything,
            "ids": target.ids,
            "engine_ids": target.engine_ids,
        }
        timeout = ANSWER_TIMEOUTS[Verb.ABORT] + SLACK
        try:
            answers = await self._peers.ask(Verb.ABORT, json.dumps(query).encode(), timeout)
        except PeersUnavailable as error:
            return [WorkerResult(None, 0, f"the gateway's other processes could not be asked: {error}")]
        results = [WorkerResult(*row) for body in answers.bodies for row in body]
        if answers.missing:
            why = f"{answers.missing} of the gateway's processes did not answer"
            results.append(WorkerResult(None, 0, why))
        return results

    def _answer(self, query: bytes, reply: Reply) -> None:
        self._tasks.spawn(self._abort_here(query, reply), "abort for another process")

    async def _abort_here(self, query: bytes, reply: Reply) -> None:
        fields = json.loads(query)
        engine_ids = tuple(EngineId(*row) for row in fields["engine_ids"])
        target = AbortTarget(fields["everything"], tuple(fields["ids"]), engine_ids)
        results = await self._local.abort(target, self._formats[fields["format"]])
        reply(json.dumps([[each.worker, each.aborted, each.error] for each in results]).encode())


def _by_worker(results: Sequence[WorkerResult]) -> Sequence[WorkerResult]:
    """Return one result per worker, with the first error of each."""
    merged: dict[str | None, WorkerResult] = {}
    for result in results:
        before = merged.get(result.worker)
        if before is not None:
            aborted = before.aborted + result.aborted
            result = WorkerResult(result.worker, aborted, before.error or result.error)
        merged[result.worker] = result
    return list(merged.values())
