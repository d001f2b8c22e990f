"""Ended exchanges of every kind, and reading a scrape."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from gateway.errors import Cancelled, GatewayError
from gateway.exchange import ExchangeEvent, ExchangeRecord
from gateway.settings import Settings
from gateway.telemetry.buckets import Buckets
from gateway.telemetry.exporter import MetricsExporter
from gateway.telemetry.exposition import NO_VALUES, CurrentValues
from gateway.telemetry.metrics import Metrics

BUCKETS = Buckets(**Settings().bucket_bounds)


def fresh(*, stream: bool = False, **facts: Any) -> ExchangeRecord:
    """An exchange accepted at 100 s, with ``facts`` as its attributes."""
    exchange = ExchangeRecord("fmt", "/generate", 100.0, BUCKETS.itl)
    exchange.stream = stream
    for name, value in facts.items():
        setattr(exchange, name, value)
    return exchange


def dispatched(*, stream: bool = False, **facts: Any) -> ExchangeRecord:
    exchange = fresh(stream=stream, **{"model": "m", "worker": "http://w:1", "attempts": 1, **facts})
    exchange.apply(ExchangeEvent.DISPATCH)
    exchange.dispatched_at = 100.25
    return exchange


def completed(*, stream: bool = False, tokens: int = 3, **facts: Any) -> ExchangeRecord:
    """Tokens one by one: the first after 0.5 s, then one each 0.1 s; the end 2 s after acceptance."""
    exchange = dispatched(stream=stream, **{"prompt_tokens": 7, "status": 200, **facts})
    exchange.apply(ExchangeEvent.DATA)
    exchange.committed = True
    for token in range(tokens):
        exchange.update_tokens(token + 1, 100.5 + token * 0.1)
    exchange.end(ExchangeEvent.FINISH, 102.0)
    return exchange


def failed(error: GatewayError, exchange: ExchangeRecord | None = None) -> ExchangeRecord:
    exchange = exchange or fresh()
    exchange.end(ExchangeEvent.CANCEL if isinstance(error, Cancelled) else ExchangeEvent.FAIL, 101.0, error)
    return exchange


class Telemetry:
    """The metrics of a gateway and their exporter."""

    def __init__(self, values: CurrentValues = NO_VALUES, prefix: str = "dynamo_frontend") -> None:
        self.metrics = Metrics(BUCKETS)
        self.exporter = MetricsExporter(prefix, BUCKETS, self.metrics.tallies, values)

    def render(self) -> bytes:
        return self.exporter.render()[0]


def count(metrics: Metrics | Telemetry, *exchanges: ExchangeRecord) -> None:
    counters = metrics.metrics if isinstance(metrics, Telemetry) else metrics
    for exchange in exchanges:
        counters.started(exchange)
        counters.ended(exchange)


Samples = dict[tuple[str, ...], float]


def samples_of(text: str) -> Samples:
    """(sample name without the prefix, its label values) -> value, as a standard client reads it."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name.removeprefix("dynamo_frontend_"), *sample.labels.values())
            assert key not in found, f"{key} is given twice"
            found[key] = sample.value
    return found


def scrape(telemetry: Telemetry) -> Samples:
    body, content_type = telemetry.exporter.render()
    assert content_type.startswith("text/plain; version=0.0.4")
    return samples_of(body.decode())
