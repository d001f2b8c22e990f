"""The counts of the load generator over a stretch of time.

Owns: counting and percentiles. Must never enter: I/O.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Window:
    """The counts since the window was opened; latencies and delays in seconds."""

    started: float = field(default_factory=time.monotonic)
    cpu: float = field(default_factory=time.process_time)
    replies: int = 0
    events: int = 0
    bytes: int = 0
    errors: int = 0
    latencies: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Return all counts, with lists as percentiles in milliseconds."""
        seconds = time.monotonic() - self.started
        text = {name: getattr(self, name) for name in ("replies", "events", "bytes", "errors")}
        for name, values in (("latency", self.latencies), ("delay", self.delays)):
            values.sort()
            for share in (50, 99, 100):
                text[f"{name}_p{share}_ms"] = 1000 * percentile(values, share) if values else None
        return {**text, "seconds": seconds, "client_cpu": (time.process_time() - self.cpu) / seconds}


def percentile(ordered: list[float], share: float) -> float:
    """Return the value that ``share`` per cent of the ordered values do not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))]
