"""What is counted about exchanges.

Owns: feeding the tallies from a finished exchange, and the answer to a scrape. Must never enter:
the words of a metric (``families``), a decision, I/O.

Called on the event loop only. Nothing here is labelled with what a client chose: models are those of the
fleet (``Exchange.model`` is None otherwise), workers those of the fleet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from gateway.exchange import Exchange, State
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.telemetry.buckets import Buckets
from gateway.telemetry.exposition import Exposition
from gateway.telemetry.tally import UNKNOWN_MODEL, FormatTally, ModelTally, Tallies

_LOOP_INTERVAL = 0.1


class Metrics:
    """The metrics of one gateway.

    ``registry`` is shown along with them: it holds those of the process, and a host may add its own.
    ``workers``, ``transitions``, ``dropped_lines`` and ``store_healthy`` are asked at each scrape: the fleet,
    how often a worker went from one state to another, access log lines lost so far, and whether the store of
    workers can be read.
    ``gap_bounds`` are the bounds, in seconds, in which an exchange counts its inter-token gaps.
    """

    def __init__(
        self,
        prefix: str,
        buckets: Buckets,
        *,
        workers: Callable[[], Iterable[Worker]] = tuple,
        dropped_lines: Callable[[], int] = int,
        store_healthy: Callable[[], bool] = lambda: True,
    ) -> None:
        self.gap_bounds = buckets.itl
        self.registry = CollectorRegistry()
        self._buckets = buckets
        self._tallies = Tallies()
        self._exposition = Exposition(prefix, self._tallies, workers, dropped_lines, store_healthy)
        ProcessCollector(registry=self.registry)

    def started(self, exchange: Exchange) -> None:
        """``exchange`` was accepted. Once each; its labels may still be unknown."""
        self._tallies.running[exchange] = False

    def ended(self, exchange: Exchange) -> None:
        """``exchange`` is over and all its facts are in. Once each, after ``started``."""
        tallies = self._tallies
        model, stream = exchange.model or UNKNOWN_MODEL, exchange.stream
        if not tallies.running.pop(exchange):
            tallies.begun[model, stream] += 1
        error_type = exchange.error_type
        tallies.requests[model, stream, error_type] += 1
        if error_type:
            error = exchange.error
            tallies.failures[error_type, error.code if error else None] += 1
        if exchange.worker is not None:
            tallies.served[exchange.worker, exchange.format, exchange.state] += 1
        _count_traffic(self._format(exchange.format), exchange)
        _observe(self._model(model), exchange)

    def moved(self, before: WorkerState, after: WorkerState) -> None:
        """A worker went from one state to another."""
        self._tallies.transitions[before, after] += 1

    def unauthorized(self, realm: str) -> None:
        """A request to a route of this kind had no valid key."""
        self._tallies.unauthorized[realm] += 1

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
        """Measure, until cancelled, how late the event loop is with a timer."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LOOP_INTERVAL
            await asyncio.sleep(_LOOP_INTERVAL)
            self._tallies.loop_delay.observe(max(0.0, loop.time() - due))

    def render(self) -> tuple[bytes, str]:
        """The scrape's body and its content type."""
        # A model's name is a worker's word and may hold what UTF-8 cannot.
        own = self._exposition.text().encode(errors="backslashreplace")
        return own + generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4


def _count_traffic(tally: FormatTally, exchange: Exchange) -> None:
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


def _observe(tally: ModelTally, exchange: Exchange) -> None:
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
        if exchange.gaps.counts is not None:
            tally.itl.merge(exchange.gaps.counts, exchange.gaps.total)
