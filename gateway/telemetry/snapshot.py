"""The counts of one process in a form that can be sent to another process and added.

Owns: the conversion of tallies to a snapshot and back, and the sum of snapshots. Must never enter: names of
metrics, communication between processes, I/O.

Each number has a key: its kind and its labels. The encoding is ASCII JSON with escapes, because a label may
be text that UTF-8 cannot encode.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.errors import ProcessDied
from gateway.exchange import ExchangeState
from gateway.fleet.states import WorkerState
from gateway.formats.contract import Ending
from gateway.routing.rendezvous import Placement
from gateway.telemetry.buckets import Buckets
from gateway.telemetry.tally import FormatTally, Histogram, ModelTally, Tallies

#: For example ("requests", model, operation, stream, error type).
Key = tuple[Any, ...]

_UNLABELLED = ("loop_delay", "waits")
_HISTOGRAMS = ("duration", "isl", "osl", "cached", "ttft", "itl")
#: Attributes of a FormatTally that are one number each.
_TRAFFIC = ("request_bytes", "reply_bytes", "retries", "routed")
#: The only metric of a process that is still counted after the process has ended.
_CPU = "process_cpu_seconds_total"


class Snapshot:
    """All numbers, and all histograms as a list of their sum and the count of each bucket."""

    __slots__ = ("histograms", "numbers")

    def __init__(
        self, numbers: dict[Key, float] | None = None, histograms: dict[Key, list[float]] | None = None
    ) -> None:
        self.numbers = numbers if numbers is not None else {}
        self.histograms = histograms if histograms is not None else {}

    def add(self, other: Snapshot) -> None:
        """Add the counts of another process."""
        numbers, histograms = self.numbers, self.histograms
        for key, number in other.numbers.items():
            numbers[key] = numbers.get(key, 0) + number
        for key, values in other.histograms.items():
            ours = histograms.get(key)
            summed = values if ours is None else [one + two for one, two in zip(ours, values, strict=True)]
            histograms[key] = summed

    def encode(self) -> bytes:
        """Return the snapshot as one line of ASCII JSON."""
        parts = [list(self.numbers.items()), list(self.histograms.items())]
        return json.dumps(parts, separators=(",", ":")).encode()

    @classmethod
    def of(cls, parts: Any) -> Snapshot:
        """Return the snapshot for the parsed JSON ``parts``."""
        numbers, histograms = parts
        return cls({tuple(key): n for key, n in numbers}, {tuple(key): list(v) for key, v in histograms})


def merge_final_counts(gone: bytes | None, last: bytes) -> bytes:
    """Add the last snapshot of a process that ended to ``gone``, the sum of those that ended before.

    Both, and the returned sum, are encoded.
    """
    total = Snapshot.of(json.loads(gone)) if gone is not None else Snapshot()
    total.add(_closed(Snapshot.of(json.loads(last))))
    return total.encode()


def _closed(last: Snapshot) -> Snapshot:
    """Return the final counts of a process that ended with the snapshot ``last``.

    Each exchange that was running counts as failed; values that describe the present are left out.
    """
    numbers: dict[Key, float] = {}
    running: list[tuple[Key, float]] = []
    for key, number in last.numbers.items():
        if key[0] == "running":
            running.append((key, number))
        elif key[0] not in ("load", "waiting", "process") or key[-1] == _CPU:
            numbers[key] = number
    for (_, model, operation, stream, begun, _waiting), count in running:
        ends: list[Key] = [
            ("requests", model, operation, stream, ProcessDied.error_type),
            ("failures", ProcessDied.error_type, ProcessDied.code),
        ]
        for key in ends if begun else [*ends, ("begun", model, operation, stream)]:
            numbers[key] = numbers.get(key, 0) + count
    return Snapshot(numbers, last.histograms)


def take_snapshot(
    tallies: Tallies, loads: Mapping[str, int], lost_lines: int, waiting: int, process: Mapping[str, float]
) -> Snapshot:
    """Return the counts of this process.

    ``loads`` are the requests in flight by URL, for every worker of the fleet; ``waiting`` is the number of
    queued requests; ``process`` are the metrics of the operating system by name.
    """
    tallies.count_begun()
    tallies.forget_served(loads)
    numbers: dict[Key, float] = {("lost_lines",): lost_lines, ("waiting",): waiting}
    for kind, counts in _counters(tallies):
        numbers.update({(kind, *key): count for key, count in counts.items()})
    for url, load in loads.items():
        if load:
            numbers["load", url] = load
    for name, value in process.items():
        numbers["process", name] = value
    numbers.update({("placed", placement): count for placement, count in tallies.placements.items()})
    numbers.update({("queue_refused", reason): count for reason, count in tallies.queue_refused.items()})
    numbers.update({("unauthorized", scope): count for scope, count in tallies.unauthorized.items()})
    numbers.update({("limits", limit): count for limit, count in tallies.limits.items()})
    for name, tally in tallies.formats.items():
        for attribute in _TRAFFIC:
            numbers[attribute, name] = getattr(tally, attribute)
        numbers.update({("endings", name, ending): count for ending, count in tally.endings.items()})
        numbers.update({("refused", name, rule): count for rule, count in tally.refused.items()})
    histograms: dict[Key, list[float]] = {(name,): _values(getattr(tallies, name)) for name in _UNLABELLED}
    for model, model_tally in tallies.models.items():
        numbers["output_tokens", model] = model_tally.output_tokens
        for part in _HISTOGRAMS:
            histograms[part, model] = _values(getattr(model_tally, part))
    return Snapshot(numbers, histograms)


def _counters(tallies: Tallies) -> Iterable[tuple[str, Mapping[Key, int]]]:
    yield "requests", tallies.requests
    yield "begun", tallies.begun
    yield "failures", tallies.failures
    yield "served", tallies.served
    yield "moved", tallies.transitions
    yield "running", tallies.running_now()


def _values(histogram: Histogram) -> list[float]:
    return [histogram.total, *histogram.counts]


def restore_tallies(total: Snapshot, buckets: Buckets) -> Tallies:
    """Return tallies with the counts of ``total``, which was counted in ``buckets``."""
    tallies = Tallies()
    for key, number in total.numbers.items():
        _restore(tallies, key, int(number), buckets)
    for (kind, *labels), values in total.histograms.items():
        histogram = getattr(_model(tallies, labels[0], buckets) if labels else tallies, kind)
        histogram.total, histogram.counts = values[0], [int(count) for count in values[1:]]
    return tallies


def _restore(tallies: Tallies, key: Key, number: int, buckets: Buckets) -> None:
    match key:
        case "requests", model, operation, stream, error:
            tallies.requests[model, operation, stream, error] = number
        case "begun", model, operation, stream:
            tallies.begun[model, operation, stream] = number
        case "failures", error, code:
            tallies.failures[error, code] = number
        case "served", url, name, state:
            tallies.served[url, name, ExchangeState(state)] = number
        case "moved", before, after:
            tallies.transitions[WorkerState(before), WorkerState(after)] = number
        case "running", *labels:
            tallies.elsewhere[tuple(labels)] = number
        case _:
            _restore_by_name(tallies, key, number, buckets)


def _restore_by_name(tallies: Tallies, key: Key, number: int, buckets: Buckets) -> None:
    """Restore one number that is kept by model, format or a single label."""
    match key:
        case "output_tokens", model:
            _model(tallies, model, buckets).output_tokens = number
        case "endings", name, ending:
            _format(tallies, name).endings[Ending(ending)] = number
        case "unauthorized", scope:
            tallies.unauthorized[scope] = number
        case "limits", limit:
            tallies.limits[limit] = number
        case "placed", placement:
            tallies.placements[Placement(placement)] = number
        case "queue_refused", reason:
            tallies.queue_refused[reason] = number
        case "refused", name, rule:
            _format(tallies, name).refused[rule] = number
        case (kind, name) if kind in _TRAFFIC:
            setattr(_format(tallies, name), kind, number)


def _model(tallies: Tallies, name: str, buckets: Buckets) -> ModelTally:
    if name not in tallies.models:
        tallies.models[name] = ModelTally(buckets)
    return tallies.models[name]


def _format(tallies: Tallies, name: str) -> FormatTally:
    return tallies.formats.setdefault(name, FormatTally())
