"""The metrics of the gateway: what is counted, and the reply to a scrape.

Owns: updating the tallies from a finished exchange, and rendering a scrape. Must never enter: names of
metrics (``families``), a decision, I/O.

Called on the event loop only. No label has a value chosen by a client: models and workers are those of the
fleet (``ExchangeRecord.model`` is None for any other model).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from gateway.exchange import ExchangeRecord, State
from gateway.fleet.states import WorkerState
from gateway.routing.rendezvous import Placement
from gateway.telemetry.buckets import Buckets
from gateway.telemetry.exposition import NO_VALUES, CurrentValues, Exposition, Processes
from gateway.telemetry.process import process_text, process_values
from gateway.telemetry.snapshot import Snapshot, restore_tallies, take_snapshot
from gateway.telemetry.tally import MODELS_LIMIT, UNKNOWN_MODEL, FormatTally, ModelTally, Tallies

_LOOP_INTERVAL = 0.1


class Metrics:
    """The metrics of one gateway.

    ``registry`` is rendered with them: it holds the metrics of the process, and a program that embeds the
    gateway may add its own. ``gap_bounds`` are the bucket bounds, in seconds, for the inter-token latencies
    of an exchange. ``supervisor`` is the process id of the supervisor, None if this is the only process.
    """

    def __init__(
        self,
        prefix: str,
        buckets: Buckets,
        now: CurrentValues = NO_VALUES,
        *,
        supervisor: int | None = None,
    ) -> None:
        self.gap_bounds = buckets.itl
        self.registry = CollectorRegistry()
        self._buckets = buckets
        self._tallies = Tallies()
        self._prefix = prefix
        self._now = now
        self._supervisor = supervisor
        self._models_limit = MODELS_LIMIT
        self._exposition = Exposition(prefix, self._tallies, self._now)
        if supervisor is None:
            ProcessCollector(registry=self.registry)

    def started(self, exchange: ExchangeRecord) -> None:
        """Count ``exchange`` as accepted; its labels may still be unknown. Called once for each."""
        self._tallies.running[exchange] = False

    def ended(self, exchange: ExchangeRecord) -> None:
        """Count ``exchange`` as ended, with all its facts known. Called once for each, after ``started``."""
        tallies = self._tallies
        model, stream = exchange.model or UNKNOWN_MODEL, exchange.stream
        if not tallies.running.pop(exchange):
            tallies.begun[model, exchange.operation, stream] += 1
        error_type = exchange.error_type
        tallies.requests[model, exchange.operation, stream, error_type] += 1
        if error_type:
            error = exchange.error
            tallies.failures[error_type, error.code if error else None] += 1
            if error is not None and error.limit is not None:
                tallies.limits[error.limit] += 1
        if exchange.worker is not None:
            tallies.served[exchange.worker, exchange.format, exchange.state] += 1
        _count_traffic(self._format(exchange.format), exchange)
        _observe(self._model(model), exchange)

    def moved(self, before: WorkerState, after: WorkerState) -> None:
        """Count a change of a worker's state."""
        self._tallies.transitions[before, after] += 1

    def placed(self, placement: Placement) -> None:
        """Count a request with a routing key, which was sent to the home of its key or elsewhere."""
        self._tallies.placements[placement] += 1

    def waited(self, seconds: float) -> None:
        """Observe how long a request was queued, whatever its outcome."""
        self._tallies.waits.observe(seconds)

    def queue_refused(self, reason: str) -> None:
        """Count a request that the queue did not serve; ``reason`` is ``full`` or ``timeout``."""
        self._tallies.queue_refused[reason] += 1

    def unauthorized(self, scope: str) -> None:
        """Count a request without a valid key to a route of ``scope``."""
        self._tallies.unauthorized[scope] += 1

    def hit(self, limit: str) -> None:
        """Count that ``limit`` was reached where there is no exchange that ends because of it."""
        self._tallies.limits[limit] += 1

    def _format(self, name: str) -> FormatTally:
        tally = self._tallies.formats.get(name)
        if tally is None:
            tally = self._tallies.formats[name] = FormatTally()
        return tally

    def _model(self, name: str) -> ModelTally:
        tally = self._tallies.models.get(name)
        if tally is None:
            tally = self._tallies.models[name] = ModelTally(self._buckets)
        return tally

    async def watch_loop(self) -> None:
        """Measure how late the event loop runs a timer, and limit the number of models, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LOOP_INTERVAL
            await asyncio.sleep(_LOOP_INTERVAL)
            self._tallies.loop_delay.observe(max(0.0, loop.time() - due))
            if len(self._tallies.models) > self._models_limit:
                self._forget_models()

    def _forget_models(self) -> None:
        infos = (info for worker in self._now.workers() for info in worker.infos.values())
        served = {model for info in infos for model in info.models}
        self._tallies.fold(served, self._model(UNKNOWN_MODEL))
        # A fleet that serves this many models must not cause this again in the next round.
        self._models_limit = max(MODELS_LIMIT, len(self._tallies.models) * 5 // 4)

    def render(self) -> tuple[bytes, str]:
        """Return the body of a scrape and its content type."""
        # The name of a model comes from a worker and may hold what UTF-8 cannot encode.
        own = self._exposition.text().encode(errors="backslashreplace")
        return own + generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4

    def loads(self) -> dict[str, int]:
        """Return the number of requests this process has in flight, by worker URL."""
        return {worker.url: worker.in_flight for worker in self._now.workers()}

    def snapshot(self) -> Snapshot:
        """Return what this process has counted so far, to be added to the counts of other processes."""
        now = self._now
        return take_snapshot(
            self._tallies, self.loads(), now.dropped_lines(), now.waiting(), process_values()
        )

    def render_aggregate(
        self, own: Snapshot, others: Iterable[Snapshot], serving: int, restarts: int
    ) -> tuple[bytes, str]:
        """Return the body and content type of the scrape of a gateway of several processes.

        ``own`` is a snapshot of this process and is changed; ``others`` are those of all other processes,
        dead ones included.
        """
        loads: Counter[str] = Counter()
        for other in others:
            loads.update({key[1]: int(load) for key, load in other.numbers.items() if key[0] == "load"})
            own.add(other)
        processes = Processes(serving, restarts, loads)
        lost = int(own.numbers["lost_lines",])
        tallies = restore_tallies(own, self._buckets)
        waiting = int(own.numbers["waiting",])
        now = self._now._replace(dropped_lines=lambda: lost, waiting=lambda: waiting)
        text = Exposition(self._prefix, tallies, now, processes).text()
        summed = {key[1]: value for key, value in own.numbers.items() if key[0] == "process"}
        assert self._supervisor is not None, "one of several processes has a supervisor"
        parts = (
            text.encode(errors="backslashreplace"),
            process_text(summed, self._supervisor),
            generate_latest(self.registry),
        )
        return b"".join(parts), CONTENT_TYPE_PLAIN_0_0_4


def _count_traffic(tally: FormatTally, exchange: ExchangeRecord) -> None:
    tally.request_bytes += exchange.request_bytes
    tally.reply_bytes += exchange.reply_bytes
    if exchange.attempts > 1:
        tally.retries += exchange.attempts - 1
    if exchange.ending is not None:
        tally.endings[exchange.ending] += 1
    if exchange.routing_data is not None:
        tally.routed += 1
    error = exchange.error
    if error is not None and error.rule is not None:
        tally.refused[error.rule] += 1


def _observe(tally: ModelTally, exchange: ExchangeRecord) -> None:
    tally.duration.observe(exchange.elapsed)
    tokens = exchange.tokens
    if not tokens and (exchange.state is not State.COMPLETED or exchange.error_type):
        return
    if exchange.prompt_tokens is not None:
        tally.isl.observe(exchange.prompt_tokens)
    if exchange.cached_tokens is not None:
        tally.cached.observe(exchange.cached_tokens)
    if not tokens:
        return
    tally.osl.observe(tokens)
    tally.output_tokens += tokens
    ttft = exchange.ttft
    if ttft is not None:
        tally.ttft.observe(ttft)
        if exchange.gaps is not None:
            tally.itl.merge(exchange.gaps.counts, exchange.gaps.total)
