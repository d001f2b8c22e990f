"""The reply to a scrape, for one process or for several.

Owns: the body of a scrape, and what a process sends to another one for a common scrape. Must never enter:
counting (``metrics``), names of metrics (``families``), I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from gateway.telemetry.buckets import Buckets
from gateway.telemetry.exposition import NO_VALUES, CurrentValues, Exposition, Processes
from gateway.telemetry.process import process_text, process_values
from gateway.telemetry.snapshot import Snapshot, restore_tallies, take_snapshot
from gateway.telemetry.tally import Tallies


class MetricsExporter:
    """The metrics of one process as text, and the sum over several processes.

    ``registry`` is rendered with them: it holds the metrics of the process, and a program that embeds the
    gateway may add its own. ``supervisor`` is the process id of the supervisor, None if this is the only
    process.
    """

    def __init__(
        self,
        prefix: str,
        buckets: Buckets,
        tallies: Tallies,
        values: CurrentValues = NO_VALUES,
        *,
        supervisor: int | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._prefix = prefix
        self._buckets = buckets
        self._tallies = tallies
        self._values = values
        self._supervisor = supervisor
        self._exposition = Exposition(prefix, tallies, values)
        if supervisor is None:
            ProcessCollector(registry=self.registry)

    def render(self) -> tuple[bytes, str]:
        """Return the body of a scrape and its content type."""
        # The name of a model comes from a worker and may hold what UTF-8 cannot encode.
        text = self._exposition.text().encode(errors="backslashreplace")
        return text + generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4

    def loads(self) -> dict[str, int]:
        """Return the number of requests this process has in flight, by worker URL."""
        return {worker.url: worker.in_flight for worker in self._values.workers()}

    def snapshot(self) -> Snapshot:
        """Return what this process has counted so far, to be added to the counts of other processes."""
        dropped, waiting = self._values.dropped_lines(), self._values.waiting()
        return take_snapshot(self._tallies, self.loads(), dropped, waiting, process_values())

    def render_aggregate(
        self, own: Snapshot, others: Iterable[Snapshot], serving: int, restarts: int
    ) -> tuple[bytes, str]:
        """Return the body and content type of the scrape of a gateway of several processes.

        ``own`` is a snapshot of this process and is changed; ``others`` are those of all other processes,
        dead ones included.
        """
        loads: Counter[str] = Counter()
        for other in others:
            loads.update({key[1]: int(load) for key, load in other.numbers.items() if key[0] == "load"})
            own.add(other)
        processes = Processes(serving, restarts, loads)
        lost = int(own.numbers["lost_lines",])
        tallies = restore_tallies(own, self._buckets)
        tallies.last_streams = self._tallies.last_streams
        waiting = int(own.numbers["waiting",])
        values = self._values._replace(dropped_lines=lambda: lost, waiting=lambda: waiting)
        text = Exposition(self._prefix, tallies, values, processes).text()
        summed = {key[1]: value for key, value in own.numbers.items() if key[0] == "process"}
        assert self._supervisor is not None, "one of several processes has a supervisor"
        parts = (
            text.encode(errors="backslashreplace"),
            process_text(summed, self._supervisor),
            generate_latest(self.registry),
        )
        return b"".join(parts), CONTENT_TYPE_PLAIN_0_0_4
