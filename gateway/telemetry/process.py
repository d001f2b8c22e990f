"""What the system says of a process: its CPU time, memory and open files.

Owns: asking for it, and showing it for several processes as if they were one. Must never enter: what the
gateway counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

#: Not a sum: that of the process which started the others is that of the gateway.
_STARTED = "process_start_time_seconds"


def process_values(pid: int | None = None) -> dict[str, float]:
    """Value by the name of the metric, of this process or another one; empty where the system does not
    say."""
    return {sample.name: sample.value for metric in _collect(pid) for sample in metric.samples}


def process_text(summed: Mapping[str, float], supervisor: int) -> bytes:
    """The metrics of a whole gateway, in the text format: those of its processes ``summed``, and the
    supervisor, which has the process id ``supervisor``."""
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
