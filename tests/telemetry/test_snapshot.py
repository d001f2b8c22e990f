"""Counts of several processes are added as if one process had counted."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Cancelled, Draining, GatewayError, InvalidRequest, UpstreamIncomplete
from gateway.exchange import ExchangeRecord
from gateway.fleet.worker import Worker
from gateway.formats.contract import Ending
from gateway.routing.rendezvous import Placement
from gateway.telemetry.exposition import CurrentValues
from gateway.telemetry.process import process_text, process_values
from gateway.telemetry.snapshot import Snapshot, merge_final_counts, restore_tallies, take_snapshot
from gateway.telemetry.tally import Tallies
from gateway.upstream.address import Address
from tests.telemetry import support
from tests.telemetry.support import BUCKETS, Telemetry, completed, count, dispatched, failed, fresh


def received(metrics: Telemetry) -> Snapshot:
    """A snapshot as another process receives it: the channel between processes sends lines."""
    encoded = metrics.exporter.snapshot().encode()
    assert encoded.isascii() and b"\n" not in encoded
    return Snapshot.of(json.loads(encoded))


def shown(tallies: Tallies) -> dict[Any, Any]:
    """All numbers of tallies, without those that only one process has."""
    snapshot = take_snapshot(tallies, {"http://w:1": 0}, 0, 0, {})
    numbers = {key: number for key, number in snapshot.numbers.items() if number}
    # Sums of seconds in another order differ in the last digit.
    rounded = {key: [round(each, 6) for each in values] for key, values in snapshot.histograms.items()}
    return {**numbers, **rounded}


def _exchange(kind: str, model: str, tokens: int) -> ExchangeRecord:
    error: GatewayError
    match kind:
        case "unary":
            return completed(model=model, tokens=tokens, ending=Ending.STOP, request_bytes=7, reply_bytes=9)
        case "stream":
            return completed(model=model, tokens=tokens, stream=True, cached_tokens=2, routing_data={"a": 1})
        case "refused":
            error = InvalidRequest("no", rule="some_rule")
        case "broken":
            return failed(UpstreamIncomplete("gone"), dispatched(model=model, attempts=3))
        case "cancelled":
            return failed(Cancelled("left"), dispatched(model=model, stream=True))
        case _:
            error = Draining("going")
    return failed(error)


KINDS = st.sampled_from(["unary", "stream", "refused", "broken", "cancelled", "drained"])
#: Names that workers may report: any text that JSON can hold.
MODELS = st.sampled_from(["m", "other", 'a"b\n', "\ud800", "müll"])
EXCHANGES = st.lists(st.tuples(KINDS, MODELS, st.integers(1, 5)), max_size=8)


def _metrics() -> Telemetry:
    worker = Worker(Address.parse("http://w:1"))
    return Telemetry(CurrentValues(lambda: [worker]))


@given(st.lists(EXCHANGES, min_size=1, max_size=3))
def test_sum_of_processes_is_what_one_process_would_have_counted(parts: Sequence[Any]) -> None:
    total, one = Snapshot(), _metrics()
    for part in parts:
        each = _metrics()
        for metrics in (each, one):
            count(metrics, *(_exchange(*facts) for facts in part))
        total.add(received(each))
    assert shown(restore_tallies(total, BUCKETS)) == shown(restore_tallies(received(one), BUCKETS))


def test_placements_of_all_processes_are_summed() -> None:
    total = Snapshot()
    for _ in range(2):
        metrics = _metrics()
        for placement in (Placement.HOME, Placement.HOME, Placement.OVERLOADED):
            metrics.metrics.key_assigned(placement)
        total.add(received(metrics))
    assert restore_tallies(total, BUCKETS).placements == {Placement.HOME: 4, Placement.OVERLOADED: 2}


def test_running_exchanges_of_other_processes_are_seen_with_and_without_a_token() -> None:
    metrics = _metrics()
    metrics.metrics.started(dispatched(model="m"))
    with_token = dispatched(model="m", stream=True)
    with_token.update_tokens(1, 101.0)
    metrics.metrics.started(with_token)
    now = restore_tallies(received(metrics), BUCKETS).running_now()
    assert now == {("m", "generate", False, True, True): 1, ("m", "generate", True, True, False): 1}


def test_exchanges_of_a_dead_process_count_as_failed_once() -> None:
    """With or without a worker, and when another process dies after it."""
    metrics = _metrics()
    count(metrics, completed(model="m"))
    metrics.metrics.started(dispatched(model="m", stream=True))
    metrics.metrics.started(fresh())
    gone = merge_final_counts(
        merge_final_counts(None, metrics.exporter.snapshot().encode()),
        _metrics().exporter.snapshot().encode(),
    )
    tallies = restore_tallies(Snapshot.of(json.loads(gone)), BUCKETS)
    assert not tallies.running_now()
    assert tallies.requests == {
        ("m", "generate", False, ""): 1,
        ("m", "generate", True, "internal"): 1,
        ("unknown_model", "generate", False, "internal"): 1,
    }
    assert tallies.failures == {("internal", "process_died"): 2}
    assert tallies.begun.total() == tallies.requests.total() == 3


def test_of_a_dead_process_only_its_processor_time_and_its_counts_stay() -> None:
    last = Snapshot(
        {
            ("process", "process_cpu_seconds_total"): 2.5,
            ("process", "process_open_fds"): 9,
            ("load", "http://w:1"): 3,
            ("lost_lines",): 4,
        }
    )
    gone = Snapshot.of(json.loads(merge_final_counts(merge_final_counts(None, last.encode()), last.encode())))
    assert gone.numbers == {("process", "process_cpu_seconds_total"): 5, ("lost_lines",): 8}


# -- CPU time, memory and open files


def test_text_is_the_sum_except_for_the_start_time() -> None:
    own = process_values()
    summed = {"process_max_fds": 1000.0, "process_start_time_seconds": 7.0}
    text = process_text(summed, os.getpid()).decode()
    found = {name: value for (name,), value in support.samples_of(text).items()}
    assert found.keys() == own.keys()
    assert found["process_max_fds"] == own["process_max_fds"] + 1000
    assert found["process_start_time_seconds"] == own["process_start_time_seconds"]


def test_values_of_another_process_are_its_own_until_it_has_ended() -> None:
    assert process_values(os.getppid())["process_start_time_seconds"] > 0
    pid = os.posix_spawn("/bin/true", ["/bin/true"], {})
    os.waitpid(pid, 0)
    assert process_values(pid) == {}
    assert process_text({"process_open_fds": 3.0}, pid) == b""
