"""The simulated workers of a run.

Owns: starting them and setting their tempo. Must never enter: their replies (engine.py).
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
    """Worker processes, each with some of ``ports``; a router sees a worker for each port."""

    ports: Sequence[int]
    processes: Sequence[subprocess.Popen[bytes]]
    #: A port of each process.
    control_ports: Sequence[int]

    def tempo(self, events_per_second: float) -> None:
        """Set how many events a second each stream that follows the tempo sends from now on."""
        for port in self.control_ports:
            ask(port, "GET", f"/tempo/{events_per_second:.4f}")

    def running(self) -> int:
        """Return the number of running streams."""
        return sum(json.loads(ask(port, "GET", "/state")[1])["running"] for port in self.control_ports)


def start_workers(processes: Processes, count: int, *, in_task: int = 2, name: str = "worker") -> Workers:
    """Start ``count`` workers in ``in_task`` processes."""
    ports = [processes.port() for _ in range(count)]
    groups = [group for number in range(in_task) if (group := ports[number::in_task])]
    started = [
        processes.start(f"{name}-{number}", [sys.executable, "-m", "benchmarks.engine", *map(str, group)])
        for number, group in enumerate(groups)
    ]
    for number, (process, group) in enumerate(zip(started, groups, strict=True)):
        processes.wait(f"{name}-{number}", process, group[-1], "/health")
    return Workers(ports, started, [group[0] for group in groups])
