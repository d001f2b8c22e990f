"""Metrics that the operating system provides of a process: its CPU time, memory and open files.

Owns: reading them, and their sum over several processes. Must never enter: what the gateway counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

#: Not summed: the gateway started when its supervisor started.
_STARTED = "process_start_time_seconds"


def process_values(pid: int | None = None) -> dict[str, float]:
    """Return the values of process ``pid`` (None: this one) by metric name; empty if the system has none."""
    return {sample.name: sample.value for metric in _collect(pid) for sample in metric.samples}


def process_text(summed: Mapping[str, float], supervisor: int) -> bytes:
    """Return the metrics of a gateway of several processes in the text format.

    ``summed`` are the sums over the serving processes; the values of the supervisor, whose process id is
    ``supervisor``, are added.
    """
    metrics = list(_collect(supervisor))
    for metric in metrics:
        metric.samples = [
            sample
            if sample.name == _STARTED
            else sample._replace(value=sample.value + summed.get(sample.name, 0))
            for sample in metric.samples
        ]
    registry = CollectorRegistry()
    registry.register(_Fixed(metrics))
    return generate_latest(registry)


def _collect(pid: int | None) -> Iterable[Metric]:
    of = "self" if pid is None else pid
    return ProcessCollector(pid=lambda: of, registry=CollectorRegistry()).collect()


class _Fixed(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
