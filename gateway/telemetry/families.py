"""The metrics by name: what a scrape shows and what each of them means.

Owns: names, labels and help texts, and turning tallies into samples. Must never enter: feeding the tallies.
Names, labels and label values that Dynamo's dashboards use are kept as they are there; what Dynamo has
no metric for has a name of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from gateway.fleet.worker import Worker, WorkerState
from gateway.telemetry.tally import UNKNOWN_MODEL, Histogram, ModelTally, Tallies

ENDPOINT = "generate"

Rows = Iterable[tuple[tuple[str, ...], float]]


class Family(NamedTuple):
    """One metric: its name behind the prefix (counters: with ``_total``), type, labels and meaning."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


_MODEL = ("model",)
_REQUEST = ("model", "endpoint", "request_type")

STARTED = Family("requests_started_total", "counter", _REQUEST, "Requests accepted")
REQUESTS = Family(
    "requests_total", "counter", (*_REQUEST, "status", "error_type"), "Requests ended, by how they ended"
)
DURATION = Family(
    "request_duration_seconds", "histogram", _MODEL, "From a request's acceptance to the end of its reply"
)
INFLIGHT = Family(
    "inflight_requests", "gauge", _MODEL, "Requests running now (older name of active_requests)"
)
ACTIVE = Family("active_requests", "gauge", _MODEL, "Requests running now")
QUEUED = Family("queued_requests", "gauge", _MODEL, "Requests running now that have no token yet")
DISCONNECTED = Family(
    "disconnected_clients", "gauge", (), "Clients that left before their reply ended; only grows"
)
ISL = Family("input_sequence_tokens", "histogram", _MODEL, "Prompt tokens of a request that was answered")
OSL = Family(
    "output_sequence_tokens", "histogram", _MODEL, "Generated tokens of a request, over all its samples"
)
CACHED = Family("cached_tokens", "histogram", _MODEL, "Prompt tokens a worker found in its cache")
OUTPUT = Family("output_tokens_total", "counter", _MODEL, "Tokens generated")
TTFT = Family(
    "time_to_first_token_seconds",
    "histogram",
    _MODEL,
    "From a streaming request's acceptance to its first token",
)
ITL = Family(
    "inter_token_latency_seconds", "histogram", _MODEL, "Time between tokens of a stream, once for each token"
)
CANCELLED = Family("model_cancellation_total", "counter", _REQUEST, "Requests whose client left")
REJECTED = Family("model_rejection_total", "counter", ("model", "endpoint"), "Requests refused for overload")
FAILURES = Family("failures_total", "counter", ("class", "reason"), "Failed requests, by cause")
READY = Family("model_ready", "gauge", _MODEL, "1 if a usable worker serves the model, else 0")
CONTEXT = Family("model_context_length", "gauge", _MODEL, "Largest context any worker offers, in tokens")
LOOP_DELAY = Family("event_loop_delay_seconds", "histogram", (), "How late the event loop is with a timer")
WORKER_IN_FLIGHT = Family("worker_inflight_requests", "gauge", ("worker",), "Requests a worker holds now")
WORKER_STATE = Family(
    "worker_state",
    "gauge",
    ("worker", "state"),
    "1 for the state a worker is in: joining, ready, unusable, dead",
)
WORKER_REQUESTS = Family(
    "worker_requests_total",
    "counter",
    ("worker", "format", "outcome"),
    "Requests a worker was the last to serve: completed, failed, cancelled",
)
RETRIES = Family(
    "upstream_retries_total", "counter", ("format",), "Times a request was sent to another worker"
)
REQUEST_BYTES = Family("request_bytes_total", "counter", ("format",), "Bytes of request bodies received")
REPLY_BYTES = Family("reply_bytes_total", "counter", ("format",), "Bytes of reply bodies sent to clients")
LOST_LINES = Family(
    "access_log_dropped_total", "counter", (), "Access log lines lost because nobody read them"
)

#: error type -> the class under which Dynamo counts such failures
_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "validation": "InvalidRequest",
        "not_found": "NotFound",
        "overload": "Overloaded",
        "unavailable": "Unavailable",
        "cancelled": "Cancelled",
        "response_timeout": "Timeout",
        "not_implemented": "NotImplemented",
        "internal": "Internal",
    }
)
#: error code -> the reason under which Dynamo counts it; where it has none, ``gateway.<code>``
_REASONS: Mapping[str | None, str] = MappingProxyType(
    {
        None: "backend.replied",
        "invalid_request": "request.invalid",
        "unknown_model": "request.not_found",
        "no_worker": "backend.unavailable",
        "context_length": "request.context_length",
        "request_too_large": "request.too_large",
        "cancelled": "request.cancelled",
        "connect_failed": "backend.connect_failed",
        "not_received": "backend.not_received",
        "upstream_timeout": "backend.timeout",
        "upstream_incomplete": "backend.incomplete",
        "upstream_malformed": "backend.malformed",
    }
)


class Exposition(Collector):
    """Shows what was counted as families called ``<prefix>_...``."""

    def __init__(
        self,
        prefix: str,
        tallies: Tallies,
        workers: Callable[[], Iterable[Worker]],
        dropped_lines: Callable[[], int],
    ) -> None:
        self._prefix = prefix
        self._tallies = tallies
        self._workers = workers
        self._dropped_lines = dropped_lines

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are this registry's own, so registering need not scrape to find clashes."""
        return ()

    def collect(self) -> Iterator[Metric]:
        self._tallies.count_begun()
        yield from self._requests()
        yield from self._running()
        yield from self._models()
        yield from self._traffic()
        yield from self._fleet(list(self._workers()))
        yield self._histogram(LOOP_DELAY, [((), self._tallies.loop_delay)])

    def _requests(self) -> Iterator[Metric]:
        begun, requests = self._tallies.begun, self._tallies.requests
        yield self._plain(STARTED, (((model, ENDPOINT, _type(s)), n) for (model, s), n in begun.items()))
        yield self._plain(
            REQUESTS,
            (
                ((model, ENDPOINT, _type(stream), "error" if error else "success", error), count)
                for (model, stream, error), count in requests.items()
            ),
        )
        left = {
            (model, ENDPOINT, _type(s)): n
            for (model, s, error), n in requests.items()
            if error == "cancelled"
        }
        yield self._plain(CANCELLED, left.items())
        yield self._plain(DISCONNECTED, [((), sum(left.values()))])
        refused: Counter[tuple[str, ...]] = Counter()
        for (model, _, error), count in requests.items():
            if error == "overload":
                refused[model, ENDPOINT] += count
        yield self._plain(REJECTED, refused.items())
        yield self._plain(FAILURES, _failures(self._tallies.failures))

    def _running(self) -> Iterator[Metric]:
        # A model stays in the list once it was there: a gauge that vanishes reads as unknown, not as 0.
        active = dict.fromkeys(self._tallies.models, 0)
        queued = dict(active)
        for exchange in self._tallies.running:
            model = exchange.model or UNKNOWN_MODEL
            active[model] = active.get(model, 0) + 1
            queued[model] = queued.get(model, 0) + (exchange.first_token_at is None)
        yield self._plain(INFLIGHT, _by_model(active))
        yield self._plain(ACTIVE, _by_model(active))
        yield self._plain(QUEUED, _by_model(queued))

    def _models(self) -> Iterator[Metric]:
        parts: tuple[tuple[Family, Callable[[ModelTally], Histogram]], ...] = (
            (DURATION, lambda tally: tally.duration),
            (ISL, lambda tally: tally.isl),
            (OSL, lambda tally: tally.osl),
            (CACHED, lambda tally: tally.cached),
            (TTFT, lambda tally: tally.ttft),
            (ITL, lambda tally: tally.itl),
        )
        models = self._tallies.models
        for family, part in parts:
            yield self._histogram(family, (((model,), part(tally)) for model, tally in models.items()))
        yield self._plain(OUTPUT, _by_model({model: tally.output_tokens for model, tally in models.items()}))

    def _traffic(self) -> Iterator[Metric]:
        formats = self._tallies.formats.items()
        yield self._plain(RETRIES, (((name,), tally.retries) for name, tally in formats))
        yield self._plain(REQUEST_BYTES, (((name,), tally.request_bytes) for name, tally in formats))
        yield self._plain(REPLY_BYTES, (((name,), tally.reply_bytes) for name, tally in formats))
        yield self._plain(LOST_LINES, [((), self._dropped_lines())])

    def _fleet(self, workers: list[Worker]) -> Iterator[Metric]:
        ready: dict[str, float] = {}
        context: dict[str, float] = {}
        for worker in workers:
            for info in worker.infos.values():
                usable = worker.state is WorkerState.READY and info.usable
                for model in info.models:
                    ready[model] = max(ready.get(model, 0), usable)
                    context[model] = max(context.get(model, 0), info.context_length or 0)
        yield self._plain(READY, _by_model(ready))
        yield self._plain(CONTEXT, _by_model({model: most for model, most in context.items() if most}))
        yield self._plain(WORKER_IN_FLIGHT, (((worker.url,), worker.in_flight) for worker in workers))
        yield self._plain(WORKER_STATE, (((worker.url, worker.state.value), 1) for worker in workers))
        yield self._plain(WORKER_REQUESTS, self._served({worker.url for worker in workers}))

    def _served(self, urls: set[str]) -> Rows:
        served = self._tallies.served
        # Workers come and go under ever new addresses: those that left are forgotten.
        for gone in [key for key in served if key[0] not in urls]:
            del served[gone]
        return (((url, name, state.value), count) for (url, name, state), count in served.items())

    def _plain(self, family: Family, rows: Rows) -> Metric:
        metric, name = self._metric(family)
        labels = family.labels
        metric.samples = [
            Sample(name, dict(zip(labels, values, strict=True)), number) for values, number in rows
        ]
        return metric

    def _histogram(self, family: Family, rows: Iterable[tuple[tuple[str, ...], Histogram]]) -> Metric:
        metric, name = self._metric(family)
        for values, histogram in rows:
            labels = dict(zip(family.labels, values, strict=True))
            buckets = list(histogram.cumulative())
            metric.samples += [Sample(f"{name}_bucket", {**labels, "le": le}, count) for le, count in buckets]
            metric.samples.append(Sample(f"{name}_sum", labels, histogram.total))
            metric.samples.append(Sample(f"{name}_count", labels, buckets[-1][1]))
        return metric

    def _metric(self, family: Family) -> tuple[Metric, str]:
        name = f"{self._prefix}_{family.name}"
        return Metric(name.removesuffix("_total"), family.text, family.kind), name


def _type(stream: bool) -> str:
    return "stream" if stream else "unary"


def _by_model(values: Mapping[str, float]) -> Rows:
    return (((model,), value) for model, value in values.items())


def _failures(tally: Mapping[tuple[str, str | None], int]) -> Rows:
    rows: Counter[tuple[str, ...]] = Counter()
    for (error_type, code), count in tally.items():
        rows[_CLASSES.get(error_type, "Internal"), _REASONS.get(code, f"gateway.{code}")] += count
    return rows.items()
