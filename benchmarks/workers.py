"""The simulated workers of a run.

Owns: starting them and telling them a tempo. Must never enter: what they answer (engine.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.processes import Processes, ask


@dataclass
class Workers:
    """Worker processes, each with some of ``ports``; one that listens on many is many workers to a router."""

    ports: Sequence[int]
    processes: Sequence[subprocess.Popen[bytes]]
    #: A port of each process.
    control_ports: Sequence[int]

    def tempo(self, events_per_second: float) -> None:
        """How many events each stream that follows the tempo sends from now on."""
        for port in self.control_ports:
            ask(port, "GET", f"/tempo/{events_per_second:.4f}")

    def running(self) -> int:
        """Streams that run."""
        return sum(json.loads(ask(port, "GET", "/state")[1])["running"] for port in self.control_ports)


def start_workers(processes: Processes, count: int, *, in_task: int = 2, name: str = "worker") -> Workers:
    """``count`` workers in ``in_task`` processes."""
    ports = [processes.port() for _ in range(count)]
    lots = [lot for number in range(in_task) if (lot := ports[number::in_task])]
    started = [
        processes.start(f"{name}-{number}", [sys.executable, "-m", "benchmarks.engine", *map(str, lot)])
        for number, lot in enumerate(lots)
    ]
    for number, (process, lot) in enumerate(zip(started, lots, strict=True)):
        processes.wait(f"{name}-{number}", process, lot[-1], "/health")
    return Workers(ports, started, [lot[0] for lot in lots])
