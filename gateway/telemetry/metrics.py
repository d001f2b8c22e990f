"""The counting of exchanges and events for the metrics.

Owns: updating the tallies. Must never enter: names of metrics (``families``), the reply to a scrape
(``exporter``), a decision, I/O.

Called on the event loop only. No label has a value chosen by a client: models and workers are those of the
fleet (``ExchangeRecord.model`` is None for any other model).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from gateway.exchange import ExchangeRecord, ExchangeState
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.routing.rendezvous import Placement
from gateway.telemetry.buckets import Buckets
from gateway.telemetry.tally import MODELS_LIMIT, UNKNOWN_MODEL, FormatTally, ModelTally, Tallies

_LOOP_INTERVAL = 0.1


class Metrics:
    """The counters and histograms of one gateway process.

    ``gap_bounds`` are the bucket bounds, in seconds, for the inter-token latencies of an exchange.
    """

    def __init__(self, buckets: Buckets) -> None:
        self.gap_bounds = buckets.itl
        self.tallies = Tallies()
        self.buckets = buckets
        self._models_limit = MODELS_LIMIT

    def started(self, exchange: ExchangeRecord) -> None:
        """Count ``exchange`` as accepted; its labels may still be unknown. Called once for each."""
        self.tallies.running[exchange] = False

    def ended(self, exchange: ExchangeRecord) -> None:
        """Count ``exchange`` as ended, with all its facts known. Called once for each, after ``started``."""
        tallies = self.tallies
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
            if exchange.stream and not error_type:
                tallies.last_streams[exchange.worker] = (exchange.ttft, exchange.prompt_tokens, exchange.gaps)
        _count_traffic(self._format(exchange.format), exchange)
        _observe(self._model(model), exchange)

    def worker_state_changed(self, before: WorkerState, after: WorkerState) -> None:
        """Count a change of a worker's state."""
        self.tallies.transitions[before, after] += 1

    def key_assigned(self, placement: Placement) -> None:
        """Count a request with a routing key, which was sent to the home of its key or elsewhere."""
        self.tallies.placements[placement] += 1

    def waited(self, seconds: float) -> None:
        """Observe how long a request was queued, whatever its outcome."""
        self.tallies.waits.observe(seconds)

    def queue_refused(self, reason: str) -> None:
        """Count a request that the queue did not serve; ``reason`` is ``full`` or ``timeout``."""
        self.tallies.queue_refused[reason] += 1

    def unauthorized(self, scope: str) -> None:
        """Count a request without a valid key to a route of ``scope``."""
        self.tallies.unauthorized[scope] += 1

    def limit_reached(self, limit: str) -> None:
        """Count that ``limit`` was reached where there is no exchange that ends because of it."""
        self.tallies.limits[limit] += 1

    def _format(self, name: str) -> FormatTally:
        tally = self.tallies.formats.get(name)
        if tally is None:
            tally = self.tallies.formats[name] = FormatTally()
        return tally

    def _model(self, name: str) -> ModelTally:
        tally = self.tallies.models.get(name)
        if tally is None:
            tally = self.tallies.models[name] = ModelTally(self.buckets)
        return tally

    async def watch_loop(self, workers: Callable[[], Iterable[Worker]]) -> None:
        """Measure how late the event loop runs a timer, and limit the number of models, until cancelled.

        Models that one of ``workers`` serves are kept.
        """
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LOOP_INTERVAL
            await asyncio.sleep(_LOOP_INTERVAL)
            self.tallies.loop_delay.observe(max(0.0, loop.time() - due))
            if len(self.tallies.models) > self._models_limit:
                self._forget_models(workers())

    def _forget_models(self, workers: Iterable[Worker]) -> None:
        infos = (info for worker in workers for info in worker.infos.values())
        served = {model for info in infos for model in info.models}
        self.tallies.fold(served, self._model(UNKNOWN_MODEL))
        # A fleet that serves this many models must not cause this again in the next round.
        self._models_limit = max(MODELS_LIMIT, len(self.tallies.models) * 5 // 4)


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
    if not tokens and (exchange.state is not ExchangeState.COMPLETED or exchange.error_type):
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
