"""Every exchange is counted once, with the names and labels that dashboards use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway import errors
from gateway.cards.values import CardValues
from gateway.errors import Cancelled, GatewayError, InvalidRequest, NoWorker, UpstreamIncomplete
from gateway.exchange import ExchangeEvent, ExchangeRecord
from gateway.fleet.card import Card
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.contract import Ending
from gateway.formats.optional import WorkerLoad
from gateway.formats.worker_contract import WorkerInfo
from gateway.loop.tasks import Tasks
from gateway.stores.record import WorkerRecord
from gateway.telemetry import families
from gateway.telemetry.exposition import CurrentValues
from gateway.telemetry.families import REASONS, Family
from gateway.telemetry.tally import MODELS_LIMIT, Histogram
from gateway.upstream.address import Address
from tests.support.calls import calls_of
from tests.support.gateway import until
from tests.telemetry.support import Telemetry, completed, count, dispatched, failed, fresh, scrape

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.fixture
def metrics() -> Telemetry:
    return Telemetry(CurrentValues(lambda: [worker("http://w:1")]))


def worker(url: str) -> Worker:
    made = Worker(Address.parse(url))
    made.state = WorkerState.READY
    made.infos = {"fmt": WorkerInfo("engine", "cap", True, models=("m",))}
    made.card = Card(CardValues(context_length=4096))
    return made


def test_success_is_counted_with_every_label(metrics: Telemetry) -> None:
    count(metrics, completed(stream=True))
    text = metrics.render().decode()
    labels = 'model="m",endpoint="generate",request_type="stream"'
    for sample in (
        f"requests_started_total{{{labels}}}",
        f'requests_total{{{labels},status="success",error_type=""}}',
        'worker_requests_total{worker="http://w:1",format="fmt",outcome="completed"}',
    ):
        assert f"\ndynamo_frontend_{sample} 1\n" in text


@pytest.mark.parametrize(
    ("error", "error_type", "cause"),
    [
        (InvalidRequest("x"), "validation", "InvalidRequest request.invalid"),
        (errors.UnknownModel("x"), "not_found", "NotFound request.not_found"),
        (NoWorker("x"), "unavailable", "Unavailable backend.unavailable"),
        (errors.ConnectFailed("x"), "unavailable", "Unavailable backend.connect_failed"),
        (UpstreamIncomplete("x"), "internal", "Internal backend.incomplete"),
        (Cancelled("x"), "cancelled", "Cancelled request.cancelled"),
        (GatewayError("x"), "internal", "Internal gateway.internal"),
    ],
)
def test_failure_before_dispatch_is_counted_for_the_unknown_model(
    metrics: Telemetry, error: GatewayError, error_type: str, cause: str
) -> None:
    count(metrics, failed(error))
    found = scrape(metrics)
    assert found["requests_total", "unknown_model", "generate", "unary", "error", error_type] == 1
    assert found["failures_total", *cause.split()] == 1
    assert found["request_duration_seconds_count", "unknown_model"] == 1


def test_every_error_code_has_a_reason_or_is_the_fault_of_the_gateway() -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GatewayError)
    ]
    others = {kind.code for kind in kinds if kind.source is not errors.Source.GATEWAY} - set(REASONS)
    assert not others


REFUSALS = (
    InvalidRequest("x", rule="empty_text"),
    InvalidRequest("x"),
    errors.PoisonedRequest("x"),
    NoWorker("x"),
)


def _cut() -> ExchangeRecord:
    return failed(UpstreamIncomplete("cut"), dispatched())


def _aborted() -> ExchangeRecord:
    exchange = dispatched()
    exchange.end(ExchangeEvent.CANCEL, 101.0, errors.Aborted("by a call"))
    return exchange


@pytest.mark.parametrize(
    ("exchanges", "counts"),
    [
        (
            [completed(ending=Ending.STOP), completed(ending=Ending.STOP), completed(), _cut()],
            {"replies_total fmt stop": 2, "replies_total fmt incomplete": 1},
        ),
        (
            [
                *(completed(routing_data=each) for each in ({"worker_id": 7}, {}, None)),
                failed(NoWorker("x")),
            ],
            {"routed_replies_total fmt": 2},
        ),
        (
            [failed(error) for error in REFUSALS],
            {"requests_refused_total fmt empty_text": 1, "requests_refused_total fmt poison_window": 1},
        ),
        (
            [completed(tokens=0, status=400, reply_error="validation")],
            {
                "requests_total m generate unary error validation": 1,
                "failures_total InvalidRequest backend.replied": 1,
                "input_sequence_tokens_count m": 0,
            },
        ),
        ([_aborted()], {"model_cancellation_total m generate unary": 1, "disconnected_clients": 0}),
        (
            [completed(tokens=0, stream=stream, reply_error="overload") for stream in (False, True)],
            {"model_rejection_total m generate": 2},
        ),
        (
            [completed(attempts=attempts, request_bytes=9, reply_bytes=90) for attempts in (3, 1)],
            {"upstream_retries_total fmt": 2, "request_bytes_total fmt": 18, "reply_bytes_total fmt": 180},
        ),
    ],
    ids=["endings", "routing data", "rules", "error reply", "abort call", "overload", "retries and bytes"],
)
def test_exchanges_are_counted_once_for_what_they_were(
    metrics: Telemetry, exchanges: list[ExchangeRecord], counts: Mapping[str, float]
) -> None:
    """A worker's error reply is a failure of the backend, an abort call a cancellation but no disconnect."""
    count(metrics, *exchanges)
    names = {key.split()[0] for key in counts}
    counted = {" ".join(key): value for key, value in scrape(metrics).items() if key[0] in names}
    assert counted == counts


def test_lengths_and_times_of_a_stream_are_observed(metrics: Telemetry) -> None:
    count(metrics, completed(stream=True, tokens=3, cached_tokens=5))
    found = scrape(metrics)
    for name, total, observed in (
        ("request_duration_seconds", 2.0, 1),
        ("input_sequence_tokens", 7, 1),
        ("output_sequence_tokens", 3, 1),
        ("cached_tokens", 5, 1),
        ("time_to_first_token_seconds", 0.5, 1),
        ("inter_token_latency_seconds", 0.2, 2),
    ):
        assert found[f"{name}_sum", "m"] == pytest.approx(total)
        assert found[f"{name}_count", "m"] == found[f"{name}_bucket", "m", "+Inf"] == observed
    assert found["output_tokens_total", "m"] == 3
    bucket = "inter_token_latency_seconds_bucket"  # holds all observations up to its bound
    assert (found[bucket, "m", "0.084"], found[bucket, "m", "0.16"]) == (0, 2)
    assert found["request_duration_seconds_bucket", "m", "2.0"] == 1


def test_gap_over_the_last_bound_is_counted(metrics: Telemetry) -> None:
    exchange = dispatched(stream=True)
    exchange.apply(ExchangeEvent.DATA)
    exchange.update_tokens(1, 101.0)
    exchange.update_tokens(2, 161.0)
    exchange.end(ExchangeEvent.FINISH, 162.0)
    count(metrics, exchange)
    found, name = scrape(metrics), "inter_token_latency_seconds"
    assert (found[f"{name}_bucket", "m", "2.0"], found[f"{name}_bucket", "m", "+Inf"]) == (0, 1)
    assert found[f"{name}_sum", "m"] == 60


def test_running_exchanges_are_seen_at_scrape(metrics: Telemetry) -> None:
    waiting, streaming = dispatched(stream=True), dispatched(stream=True)
    streaming.apply(ExchangeEvent.DATA)
    streaming.update_tokens(1, 101.0)
    for exchange in (waiting, streaming):
        metrics.metrics.started(exchange)
    names = ("active_requests", "inflight_requests", "queued_requests")
    assert [scrape(metrics)[name, "m"] for name in names] == [2, 2, 1]
    for exchange in (waiting, streaming):
        exchange.end(ExchangeEvent.CANCEL, 102.0, Cancelled("left"))
        metrics.metrics.ended(exchange)
    assert [scrape(metrics)[name, "m"] for name in names] == [0, 0, 0]


def test_started_counter_never_falls_while_a_label_becomes_known(metrics: Telemetry) -> None:
    exchange = fresh(stream=True)
    metrics.metrics.started(exchange)
    assert ("requests_started_total", "unknown_model", "generate", "stream") not in scrape(metrics)
    exchange.model = "m"
    exchange.apply(ExchangeEvent.DISPATCH)
    exchange.dispatched_at = 101.0
    for _ in range(2):
        assert scrape(metrics)["requests_started_total", "m", "generate", "stream"] == 1
    exchange.end(ExchangeEvent.FAIL, 102.0, errors.ConnectFailed("x"))
    metrics.metrics.ended(exchange)
    assert scrape(metrics)["requests_started_total", "m", "generate", "stream"] == 1


def test_model_is_ready_while_one_usable_worker_serves_it() -> None:
    """Also one that only its record names."""
    first, second, silent = worker("http://a:1"), worker("http://b:1"), worker("http://c:1")
    silent.record = WorkerRecord("http://c:1", model="theirs")
    silent.infos = {"fmt": WorkerInfo("engine", "cap", True)}
    metrics = Telemetry(CurrentValues(lambda: [first, second, silent]))
    first.state = WorkerState.DEAD
    found = scrape(metrics)
    assert (found["model_ready", "m"], found["model_ready", "theirs"]) == (1, 1)
    second.state = WorkerState.CORDONED
    found = scrape(metrics)
    assert (found["model_ready", "m"], found["model_context_length", "m"]) == (0, 4096)


def test_worker_has_series_until_it_is_removed() -> None:
    fleet = [worker("http://w:1")]
    fleet[0].in_flight, fleet[0].vitals.reported = 4, WorkerLoad(5, 1, 0.25)
    metrics = Telemetry(CurrentValues(lambda: fleet))
    count(metrics, completed())
    for numbers in ([1, 4, 5, 1], [None] * 4):
        found = scrape(metrics)
        assert numbers == [
            found.get(("worker_requests_total", "http://w:1", "fmt", "completed")),
            found.get(("worker_inflight_requests", "http://w:1")),
            found.get(("worker_reported_running", "http://w:1")),
            found.get(("worker_state", "http://w:1", "ready")),
        ]
        fleet.clear()
    assert scrape(metrics)["output_tokens_total", "m"] == 3


@pytest.mark.parametrize(
    ("name", "label"),
    [*((each, each) for each in ('a"b', "a\\b", "a\nb", "müll/100%s")), ("\ud800", "\\ud800")],
)
def test_any_model_name_survives_the_text_format(metrics: Telemetry, name: str, label: str) -> None:
    count(metrics, completed(model=name))
    assert scrape(metrics)["output_tokens_total", label] == 3


def test_prefix_is_that_of_the_settings() -> None:
    """Metrics of the process have none."""
    body = Telemetry(prefix="mine").render()
    assert b"# TYPE mine_requests_total counter" in body and b"dynamo_frontend" not in body
    assert b"\nprocess_open_fds " in body


def test_exchange_that_was_never_started_is_a_fault(metrics: Telemetry) -> None:
    with pytest.raises(KeyError):
        metrics.metrics.ended(completed())


@pytest.mark.parametrize("healthy", [False, True])
def test_unreachable_store_is_seen(healthy: bool) -> None:
    metrics = Telemetry(CurrentValues(store_healthy=lambda: healthy))
    assert scrape(metrics)["store_healthy",] == healthy


def total(metrics: Telemetry, name: str) -> float:
    return sum(number for key, number in scrape(metrics).items() if key[0] == name)


async def test_number_of_models_is_bounded_and_no_sum_decreases(metrics: Telemetry) -> None:
    """Adapters have ever new names. Models that are served or in use keep theirs."""
    names = [f"adapter-{number}" for number in range(MODELS_LIMIT)]
    count(metrics, *(completed(stream=True, model=name, worker="http://w:1") for name in ["m", *names]))
    metrics.metrics.started(dispatched(model="adapter-1"))
    sums = "requests_total requests_started_total output_tokens_total request_duration_seconds_count".split()
    before = [total(metrics, name) for name in sums]
    tasks = Tasks()
    tasks.spawn(metrics.metrics.watch_loop(lambda: [worker("http://w:1")]), "test")
    await until(lambda: b"adapter-2" not in metrics.render())
    await until(lambda: scrape(metrics)["event_loop_delay_seconds_count",] > 0)
    await tasks.stop()
    assert [total(metrics, name) for name in sums] == before
    known = {key[1] for key in scrape(metrics) if key[0] == "request_duration_seconds_count"}
    assert known == {"m", "adapter-1", "unknown_model"}
    assert scrape(metrics)["requests_total", "m", "generate", "stream", "success", ""] == 1


def test_scrape_takes_a_bounded_number_of_calls_for_each_worker() -> None:
    fleet = [worker(f"http://10.0.{i // 256}.{i % 256}:3000") for i in range(512)]
    metrics = Telemetry(CurrentValues(lambda: fleet))
    for member in fleet:
        count(metrics, completed(worker=member.url), failed(Cancelled("x"), dispatched(worker=member.url)))
    assert sum(key[0] == "worker_requests_total" for key in scrape(metrics)) == 1024
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


#: The metrics of Dynamo's frontend.
DYNAMO = """
requests_started_total requests_total request_duration_seconds inflight_requests active_requests
queued_requests disconnected_clients input_sequence_tokens output_sequence_tokens cached_tokens
output_tokens_total time_to_first_token_seconds inter_token_latency_seconds model_cancellation_total
model_rejection_total
model_migration_total model_migration_duration_seconds model_migration_max_seq_len_exceeded_total
model_migration_limit model_ready model_total_kv_blocks model_max_num_seqs model_max_num_batched_tokens
model_context_length model_kv_cache_block_size failures_total worker_active_decode_blocks
worker_active_prefill_tokens worker_last_time_to_first_token_seconds worker_last_input_sequence_tokens
worker_last_inter_token_latency_seconds router_queue_pending_requests router_queue_pending_isl_tokens
router_queue_pending_cached_tokens router_queue_backpressure_total router_admission_received_total
router_admission_rejected_total stage_duration_seconds stage_requests event_loop_delay_seconds
event_loop_stall_total
""".split()


def test_every_metric_of_dynamo_is_here_or_does_not_apply() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (same|differs: .+|not applicable: .+) \|$", DOCS.read_text(), re.M)
    assert sorted(name for name, _ in rows) == sorted(DYNAMO)
    here = {family.name for family in vars(families).values() if isinstance(family, Family)}
    for name, what in rows:
        assert (name in here) != what.startswith("not applicable"), name


def test_delay_of_the_loop_over_five_milliseconds_is_a_stall(metrics: Telemetry) -> None:
    for delay in (0.0, 0.005, 0.0051, 0.3, 9.0):
        metrics.metrics.tallies.loop_delay.observe(delay)
    assert scrape(metrics)["event_loop_stall_total",] == 3


def test_last_complete_stream_of_each_worker_is_shown() -> None:
    """Not of a worker that is gone, nor one that had no stream."""
    fleet = [worker(url) for url in ("http://w:1", "http://w:2@3", "http://w:3")]
    metrics = Telemetry(CurrentValues(lambda: fleet))
    count(
        metrics,
        completed(stream=True, prompt_tokens=9),
        completed(stream=True),
        completed(prompt_tokens=1),
        failed(UpstreamIncomplete("cut"), dispatched(stream=True)),
        completed(stream=True, tokens=1, worker="http://w:2@3"),
    )
    names = ("time_to_first_token_seconds", "input_sequence_tokens", "inter_token_latency_seconds")
    for labels, values in (
        (("http://w:1", "none", "decode"), [0.5, 7, pytest.approx(0.1)]),
        (("http://w:2@3", "3", "decode"), [0.5, 7, None]),
        (("http://w:3", "none", "decode"), [None] * 3),
    ):
        found = scrape(metrics)
        assert [found.get((f"worker_last_{name}", *labels)) for name in names] == values
    fleet.clear()
    assert not [key for key in scrape(metrics) if key[0].startswith("worker_last")]
    assert not metrics.metrics.tallies.last_streams


def test_largest_size_that_a_worker_of_the_model_reports_is_shown() -> None:
    fleet = [worker("http://a:1"), worker("http://b:1")]
    metrics = Telemetry(CurrentValues(lambda: fleet))
    names = ("total_kv_blocks", "kv_cache_block_size", "max_num_seqs", "max_num_batched_tokens")
    assert not [name for name in names if (f"model_{name}", "m") in scrape(metrics)]
    cards = (
        CardValues(total_kv_blocks=10, kv_cache_block_size=16, max_num_batched_tokens=1),
        CardValues(total_kv_blocks=20, kv_cache_block_size=1),
    )
    for each, card in zip(fleet, cards, strict=True):
        each.card = Card(card)
    fleet[0].card_conflicts = ("context_length", "structural_tag")
    found = scrape(metrics)
    assert found["model_card_conflicts", "m"] == 2
    assert [found.get((f"model_{name}", "m")) for name in names] == [20, 16, None, 1]


def test_observation_on_a_bound_counts_up_to_it() -> None:
    histogram = Histogram((0.0, 1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert list(histogram.cumulative()) == [("0.0", 1), ("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert histogram.total == 11.5


def test_merge_of_other_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter|longer"):
        Histogram((1.0,)).merge([1], 1.0)


# -- the error type of each ending, in log and metrics

FAILURES = {"ENGINE_ABORT", "ERROR_EVENT", "ERROR_STATUS", "INCOMPLETE", "MALFORMED"}


@pytest.mark.parametrize("ending", Ending)
def test_error_type_of_a_complete_reply_is_that_of_its_status_or_else_of_its_ending(ending: Ending) -> None:
    own = "internal" if ending.name in FAILURES else ""
    for status, error_type in ((None, own), ("", own), ("validation", "validation"), ("other", "other")):
        assert completed(ending=ending, reply_error=status).error_type == error_type


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (UpstreamIncomplete("cut"), Ending.INCOMPLETE),
        (errors.UpstreamMalformed("nonsense"), Ending.MALFORMED),
        (errors.NotReceived("never sent"), None),
        (Cancelled("left"), None),
        (GatewayError("a fault"), None),
    ],
)
def test_failure_is_the_ending_of_a_reply_only_if_a_reply_had_begun(
    error: GatewayError, ending: Ending | None
) -> None:
    assert failed(error, dispatched()).ending is ending


def test_ending_read_from_the_bytes_is_not_replaced_by_the_failure() -> None:
    """A disconnect after the end of the reply is a cancellation."""
    exchange = failed(UpstreamIncomplete("cut"), dispatched(ending=Ending.ERROR_EVENT))
    assert exchange.ending is Ending.ERROR_EVENT
    exchange = failed(Cancelled("left"), dispatched(ending=Ending.STOP))
    assert (exchange.ending, exchange.error_type) == (Ending.STOP, "cancelled")
