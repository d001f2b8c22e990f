"""Every exchange is counted once, with the names and labels that dashboards use."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from gateway import errors
from gateway.errors import (
    Aborted,
    Cancelled,
    ConnectFailed,
    GatewayError,
    InvalidRequest,
    NoWorker,
    PoisonedRequest,
    UnknownModel,
    UpstreamIncomplete,
)
from gateway.exchange import ExchangeEvent
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.contract import Ending
from gateway.formats.worker_contract import WorkerInfo
from gateway.loop.tasks import Tasks
from gateway.stores.record import WorkerRecord
from gateway.telemetry import families
from gateway.telemetry.exposition import CurrentValues
from gateway.telemetry.families import REASONS, Family
from gateway.telemetry.tally import MODELS_LIMIT
from gateway.upstream.address import Address
from tests.support.calls import calls_of
from tests.support.gateway import until
from tests.telemetry.support import Telemetry, completed, count, dispatched, failed, fresh, scrape, value

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.fixture
def metrics() -> Telemetry:
    return Telemetry(CurrentValues(lambda: [worker("http://w:1")]))


def worker(url: str) -> Worker:
    made = Worker(Address.parse(url))
    made.state = WorkerState.READY
    made.infos = {"fmt": WorkerInfo("engine", "cap", True, models=("m",), context_length=4096)}
    return made


def test_success_is_counted_with_every_label(metrics: Telemetry) -> None:
    count(metrics, completed(stream=True))
    labels = {"model": "m", "endpoint": "generate", "request_type": "stream"}
    assert value(metrics, "requests_started_total", **labels) == 1
    assert value(metrics, "requests_total", **labels, status="success", error_type="") == 1
    assert (
        value(metrics, "worker_requests_total", worker="http://w:1", format="fmt", outcome="completed") == 1
    )


@pytest.mark.parametrize(
    ("error", "error_type", "cause"),
    [
        (InvalidRequest("x"), "validation", ("InvalidRequest", "request.invalid")),
        (UnknownModel("x"), "not_found", ("NotFound", "request.not_found")),
        (NoWorker("x"), "unavailable", ("Unavailable", "backend.unavailable")),
        (ConnectFailed("x"), "unavailable", ("Unavailable", "backend.connect_failed")),
        (UpstreamIncomplete("x"), "internal", ("Internal", "backend.incomplete")),
        (Cancelled("x"), "cancelled", ("Cancelled", "request.cancelled")),
        (GatewayError("x"), "internal", ("Internal", "gateway.internal")),
    ],
)
def test_failure_before_dispatch_is_counted_for_the_unknown_model(
    metrics: Telemetry, error: GatewayError, error_type: str, cause: tuple[str, str]
) -> None:
    count(metrics, failed(error))
    labels = {"model": "unknown_model", "endpoint": "generate", "request_type": "unary"}
    assert value(metrics, "requests_total", **labels, status="error", error_type=error_type) == 1
    assert value(metrics, "failures_total", **{"class": cause[0], "reason": cause[1]}) == 1
    assert value(metrics, "request_duration_seconds_count", model="unknown_model") == 1


def test_every_error_code_has_a_reason_or_is_the_fault_of_the_gateway() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GatewayError)
    ]
    others = {kind.code for kind in kinds if kind.source is not errors.Source.GATEWAY} - set(REASONS)
    assert not others


def test_endings_of_replies_are_counted_per_format(metrics: Telemetry) -> None:
    broken = failed(UpstreamIncomplete("cut"), dispatched())
    count(metrics, completed(ending=Ending.STOP), completed(ending=Ending.STOP), broken, completed())
    assert value(metrics, "replies_total", format="fmt", ending="stop") == 2
    assert value(metrics, "replies_total", format="fmt", ending="incomplete") == 1
    assert sum(number for (name, _), number in scrape(metrics).items() if name == "replies_total") == 3


def test_replies_with_routing_data_are_counted_per_format(metrics: Telemetry) -> None:
    """Empty routing data counts, too."""
    data: tuple[dict[str, int] | None, ...] = ({"worker_id": 7}, {}, None)
    count(metrics, *(completed(routing_data=each) for each in data), failed(NoWorker("x")))
    assert value(metrics, "routed_replies_total", format="fmt") == 2


def test_refusals_that_protect_workers_are_counted_by_their_rule(metrics: Telemetry) -> None:
    refusals = (InvalidRequest("x", rule="empty_text"), InvalidRequest("x"), PoisonedRequest("x"))
    count(metrics, *map(failed, (*refusals, NoWorker("x"))))
    assert value(metrics, "requests_refused_total", format="fmt", rule="empty_text") == 1
    assert value(metrics, "requests_refused_total", format="fmt", rule="poison_window") == 1
    counted = [number for (name, _), number in scrape(metrics).items() if name == "requests_refused_total"]
    assert counted == [1, 1]


def test_workers_own_error_reply_is_a_failure_of_the_backend(metrics: Telemetry) -> None:
    count(metrics, completed(tokens=0, status=400, reply_error="validation"))
    labels = {"model": "m", "endpoint": "generate", "request_type": "unary"}
    assert value(metrics, "requests_total", **labels, status="error", error_type="validation") == 1
    assert value(metrics, "failures_total", **{"class": "InvalidRequest", "reason": "backend.replied"}) == 1
    assert value(metrics, "input_sequence_tokens_count", model="m") == 0


def test_abort_call_is_a_cancellation_but_no_disconnect(metrics: Telemetry) -> None:
    exchange = dispatched()
    exchange.end(ExchangeEvent.CANCEL, 101.0, Aborted("by a call"))
    count(metrics, exchange)
    assert (
        value(metrics, "model_cancellation_total", model="m", endpoint="generate", request_type="unary") == 1
    )
    assert value(metrics, "disconnected_clients") == 0


def test_workers_refusal_for_overload_is_a_rejection(metrics: Telemetry) -> None:
    count(metrics, *(completed(tokens=0, stream=stream, reply_error="overload") for stream in (False, True)))
    assert value(metrics, "model_rejection_total", model="m", endpoint="generate") == 2


def test_lengths_and_times_of_a_stream_are_observed(metrics: Telemetry) -> None:
    count(metrics, completed(stream=True, tokens=3, cached_tokens=5))
    for name, total, observed in (
        ("request_duration_seconds", 2.0, 1),
        ("input_sequence_tokens", 7, 1),
        ("output_sequence_tokens", 3, 1),
        ("cached_tokens", 5, 1),
        ("time_to_first_token_seconds", 0.5, 1),
        ("inter_token_latency_seconds", 0.2, 2),
    ):
        assert value(metrics, f"{name}_sum", model="m") == pytest.approx(total)
        assert value(metrics, f"{name}_count", model="m") == observed
        assert value(metrics, f"{name}_bucket", model="m", le="+Inf") == observed
    assert value(metrics, "output_tokens_total", model="m") == 3


def test_buckets_hold_all_observations_up_to_their_bound(metrics: Telemetry) -> None:
    count(metrics, completed(stream=True, tokens=3))
    bucket = "inter_token_latency_seconds_bucket"
    assert value(metrics, bucket, model="m", le="0.084") == 0
    assert value(metrics, bucket, model="m", le="0.16") == 2
    assert value(metrics, "request_duration_seconds_bucket", model="m", le="2.0") == 1


def test_gap_over_the_last_bound_is_counted(metrics: Telemetry) -> None:
    exchange = dispatched(stream=True)
    exchange.apply(ExchangeEvent.DATA)
    exchange.update_tokens(1, 101.0)
    exchange.update_tokens(2, 161.0)
    exchange.end(ExchangeEvent.FINISH, 162.0)
    count(metrics, exchange)
    assert value(metrics, "inter_token_latency_seconds_bucket", model="m", le="2.0") == 0
    assert value(metrics, "inter_token_latency_seconds_bucket", model="m", le="+Inf") == 1
    assert value(metrics, "inter_token_latency_seconds_sum", model="m") == 60


def test_running_exchanges_are_seen_at_scrape(metrics: Telemetry) -> None:
    waiting, streaming = dispatched(stream=True), dispatched(stream=True)
    streaming.apply(ExchangeEvent.DATA)
    streaming.update_tokens(1, 101.0)
    metrics.metrics.started(waiting)
    metrics.metrics.started(streaming)
    assert value(metrics, "active_requests", model="m") == 2
    assert value(metrics, "inflight_requests", model="m") == 2
    assert value(metrics, "queued_requests", model="m") == 1
    for exchange in (waiting, streaming):
        exchange.end(ExchangeEvent.CANCEL, 102.0, Cancelled("left"))
        metrics.metrics.ended(exchange)
    assert value(metrics, "active_requests", model="m") == 0
    assert value(metrics, "queued_requests", model="m") == 0


def test_started_counter_never_falls_while_a_label_becomes_known(metrics: Telemetry) -> None:
    exchange = fresh(stream=True)
    metrics.metrics.started(exchange)
    labels = {"endpoint": "generate", "request_type": "stream"}
    assert value(metrics, "requests_started_total", model="unknown_model", **labels) is None
    exchange.model = "m"
    exchange.apply(ExchangeEvent.DISPATCH)
    exchange.dispatched_at = 101.0
    assert value(metrics, "requests_started_total", model="m", **labels) == 1
    assert value(metrics, "requests_started_total", model="m", **labels) == 1
    exchange.end(ExchangeEvent.FAIL, 102.0, ConnectFailed("x"))
    metrics.metrics.ended(exchange)
    assert value(metrics, "requests_started_total", model="m", **labels) == 1


def test_retries_and_bytes_are_counted_per_format(metrics: Telemetry) -> None:
    count(
        metrics,
        completed(attempts=3, request_bytes=10, reply_bytes=100),
        completed(request_bytes=1, reply_bytes=2),
    )
    assert value(metrics, "upstream_retries_total", format="fmt") == 2
    assert value(metrics, "request_bytes_total", format="fmt") == 11
    assert value(metrics, "reply_bytes_total", format="fmt") == 102


def test_model_is_ready_while_one_usable_worker_serves_it() -> None:
    first, second = worker("http://a:1"), worker("http://b:1")
    metrics = Telemetry(CurrentValues(lambda: [first, second]))
    first.state = WorkerState.DEAD
    assert value(metrics, "model_ready", model="m") == 1
    second.state = WorkerState.CORDONED
    assert value(metrics, "model_ready", model="m") == 0
    assert value(metrics, "model_context_length", model="m") == 4096


def test_model_named_only_by_the_record_is_ready_as_well() -> None:
    silent = worker("http://a:1")
    silent.record = WorkerRecord("http://a:1", model="theirs")
    silent.infos = {"fmt": WorkerInfo("engine", "cap", True)}
    metrics = Telemetry(CurrentValues(lambda: [silent]))
    assert value(metrics, "model_ready", model="theirs") == 1


def test_worker_has_series_until_it_is_removed() -> None:
    fleet = [worker("http://w:1")]
    fleet[0].in_flight = 4
    metrics = Telemetry(CurrentValues(lambda: fleet))
    count(metrics, completed())
    labels = {"worker": "http://w:1", "format": "fmt", "outcome": "completed"}
    for numbers in ([1, 4, 1], [None] * 3):
        assert numbers == [
            value(metrics, "worker_requests_total", **labels),
            value(metrics, "worker_inflight_requests", worker="http://w:1"),
            value(metrics, "worker_state", worker="http://w:1", state="ready"),
        ]
        fleet.clear()
    assert value(metrics, "output_tokens_total", model="m") == 3


@pytest.mark.parametrize(
    ("name", "label"),
    [*((each, each) for each in ('a"b', "a\\b", "a\nb", "müll/100%s")), ("\ud800", "\\ud800")],
)
def test_any_model_name_survives_the_text_format(metrics: Telemetry, name: str, label: str) -> None:
    count(metrics, completed(model=name))
    assert value(metrics, "output_tokens_total", model=label) == 3


def test_prefix_is_that_of_the_settings() -> None:
    body, _ = Telemetry(prefix="mine").exporter.render()
    assert b"\nmine_requests_total" in body or b"# TYPE mine_requests_total counter" in body
    assert b"dynamo_frontend" not in body


def test_exchange_that_was_never_started_is_a_fault(metrics: Telemetry) -> None:
    with pytest.raises(KeyError):
        metrics.metrics.ended(completed())


def test_unreachable_store_is_seen() -> None:
    healthy = [True]
    metrics = Telemetry(CurrentValues(store_healthy=lambda: healthy[0]))
    assert value(metrics, "store_healthy") == 1
    healthy[0] = False
    assert value(metrics, "store_healthy") == 0


async def test_late_event_loop_is_seen(metrics: Telemetry) -> None:
    watch = asyncio.get_running_loop().create_task(metrics.metrics.watch_loop(lambda: [worker("http://w:1")]))
    try:
        await until(lambda: bool(value(metrics, "event_loop_delay_seconds_count")))
    finally:
        watch.cancel()
    assert value(metrics, "event_loop_delay_seconds_bucket", le="+Inf")


def total(metrics: Telemetry, name: str) -> float:
    text = metrics.render().decode()
    lines = [line for line in text.splitlines() if line.startswith((f"dynamo_frontend_{name}{{",))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def test_number_of_models_is_bounded_and_no_sum_decreases(metrics: Telemetry) -> None:
    """Adapters have ever new names. Models that are served or in use keep theirs."""
    names = [f"adapter-{number}" for number in range(MODELS_LIMIT)]
    count(metrics, *(completed(stream=True, model=name, worker="http://w:1") for name in ["m", *names]))
    running = dispatched(model="adapter-1")
    metrics.metrics.started(running)
    sums = (
        "requests_total",
        "requests_started_total",
        "output_tokens_total",
        "request_duration_seconds_count",
    )
    before = [total(metrics, name) for name in sums]
    tasks = Tasks()
    tasks.spawn(metrics.metrics.watch_loop(lambda: [worker("http://w:1")]), "test")
    await until(lambda: b"adapter-2" not in metrics.render())
    await tasks.stop()
    assert [total(metrics, name) for name in sums] == before
    known = set(re.findall(r'request_duration_seconds_count{model="([^"]*)"', metrics.render().decode()))
    assert known == {"m", "adapter-1", "unknown_model"}
    labels = {"endpoint": "generate", "request_type": "stream", "status": "success", "error_type": ""}
    assert value(metrics, "requests_total", model="m", **labels) == 1


def test_process_metrics_are_shown_too(metrics: Telemetry) -> None:
    assert (value(metrics, "process_open_fds") or 0) > 0


def test_scrape_takes_a_bounded_number_of_calls_for_each_worker() -> None:
    fleet = [worker(f"http://10.0.{i // 256}.{i % 256}:3000") for i in range(512)]
    metrics = Telemetry(CurrentValues(lambda: fleet))
    for member in fleet:
        count(metrics, completed(worker=member.url), failed(Cancelled("x"), dispatched(worker=member.url)))
    found = scrape(metrics)
    assert sum(name == "worker_requests_total" for name, _ in found) == 1024
    assert calls_of(metrics.render) < 50 * len(fleet)


def test_every_metric_is_documented_with_its_type_labels_and_meaning(metrics: Telemetry) -> None:
    scraped = re.findall(r"^# TYPE dynamo_frontend_(\S+) ", metrics.render().decode(), re.MULTILINE)
    known = {family.name: family for family in vars(families).values() if isinstance(family, Family)}
    assert sorted(scraped) == sorted(known)
    rows = [
        line for line in DOCS.read_text().splitlines() if re.match(r"\| `\w+` \| (counter|gauge|hist)", line)
    ]
    assert sorted(rows) == sorted(
        f"| `{each.name}` | {each.kind} | {', '.join(each.labels) or '–'} | {each.text} |"
        for each in known.values()
    )
