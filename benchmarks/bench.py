"""One measurement: a load on a target, with the processor time it took.

Owns: the processes that all measurements share. Must never enter: which measurements there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import procfs
from benchmarks.generators import Generator, Load, LoadResult, run_wrk, wrk_is_here
from benchmarks.processes import Processes
from benchmarks.targets import Target, start_gateway
from benchmarks.workers import Workers


@dataclass
class Sample:
    """A measurement of one load on one target: the generator's figures, and the processor time in seconds."""

    target: str
    seen: LoadResult
    cpu: float
    worker_cpu: float
    load_average: float
    generator: str

    @property
    def request_us(self) -> float:
        """Return the target's processor time for a request, in microseconds."""
        return self.cpu * 1e6 / max(1, self.seen.replies)

    @property
    def event_us(self) -> float:
        """Return the target's processor time for an event, in microseconds."""
        return self.cpu * 1e6 / max(1, self.seen.events)


@dataclass
class Scale:
    """The size of a run: rounds and seconds of each load, rounds of a curve, streams held open."""

    rounds: int
    seconds: float
    growth_rounds: int
    streams: int
    connections: int = 1 << 16


SHORT = Scale(rounds=1, seconds=1, growth_rounds=1, streams=1024)
FULL = Scale(rounds=5, seconds=3, growth_rounds=3, streams=4096)


class Bench:
    """The processes and settings that all measurements share. ``say`` is called with lines of progress."""

    def __init__(
        self, processes: Processes, workers: Workers, checkout: Path, scale: Scale, say: Callable[[str], None]
    ) -> None:
        self.processes = processes
        self.workers = workers
        self.checkout = checkout
        self.scale = scale
        self.say = say
        self.generator = Generator(processes)
        #: Sends requests while the first generator runs its load.
        self.second = Generator(processes, "client-2")
        self._wrk = wrk_is_here()

    def gateway(self, name: str, workers: Sequence[int] | None = None, flags: Sequence[str] = ()) -> Target:
        """Start a new gateway for one measurement. Raises NotStarted."""
        return start_gateway(
            self.processes, workers or self.workers.ports, self.checkout, name=name, flags=flags
        )

    def sample(self, target: Target, load: Load, seconds: float, workers: Workers | None = None) -> Sample:
        """Run ``load`` on ``target`` for ``seconds`` and return the measurement."""
        pids = [process.pid for process in (workers or self.workers).processes]
        average = os.getloadavg()[0]
        before, before_workers = target.cpu_seconds(), sum(map(procfs.cpu_seconds, pids))
        if load.wrk and self._wrk:
            seen = run_wrk(self.processes, target.port, load, seconds)
        else:
            seen = self.generator.load(target.port, load, seconds)
        return Sample(
            target.name,
            seen,
            target.cpu_seconds() - before,
            sum(map(procfs.cpu_seconds, pids)) - before_workers,
            round(average, 2),
            "wrk" if load.wrk and self._wrk else "own",
        )
