"""The two load generators, as the harness uses them: our own process, and wrk.

Owns: giving them a load and reading their reports. Must never enter: the target's cost, which is read from
/proc.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.processes import Processes

NO_WRK = (
    "wrk is not on PATH (apt-get install wrk): unary loads come from this harness's own generator, which is "
    "slower; its share of a core is in the JSON"
)
_SCRIPT = """
local file = io.open(os.getenv("BENCH_BODY"), "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["content-type"] = "application/json"
function done(summary, latency)
  local e = summary.errors
  io.stderr:write(string.format("@@ %d %d %d %d %d\\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), e.connect + e.read + e.write + e.timeout + e.status))
end
"""


@dataclass(frozen=True)
class Load:
    """The requests of a load: ``body`` to ``path``, on each of ``connections`` one after another."""

    path: str
    body: bytes
    connections: int
    wrk: bool = False
    interval: float = 0.0


@dataclass
class LoadResult:
    """The report of a generator. ``client_cpu`` is its own share of one core."""

    replies: int = 0
    events: int = 0
    errors: int = 0
    seconds: float = 0.0
    replies_per_s: float = 0.0
    events_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None
    delay_p50_ms: float | None = None
    delay_p99_ms: float | None = None
    client_cpu: float = 0.0


class Generator:
    """Our own load generator, in a process that lasts as long as the run."""

    def __init__(self, processes: Processes, name: str = "client") -> None:
        self._process = processes.start(name, [sys.executable, "-m", "benchmarks.client"], piped=True)
        self._tail = partial(processes.tail, name)

    def load(self, port: int, load: Load, seconds: float) -> LoadResult:
        """Send requests one after another for ``seconds``."""
        return _load_result(self.send("load", port, load, seconds=seconds, interval=load.interval))

    def once(self, port: int, load: Load, *, patience: float = 60.0, read_rate: float = 0.0) -> LoadResult:
        """Read one reply on each connection; ``read_rate`` in bytes a second makes a slow reader."""
        return _load_result(self.send("once", port, load, seconds=patience, read_rate=read_rate))

    def open(self, port: int, load: Load, *, probe: bytes = b"", every: int = 16) -> int:
        """Open streams beside those that are open, leave them open, and return the number of errors.

        With ``probe``, one in ``every`` requests has that body instead.
        """
        report = self.send("open", port, load, seconds=60.0, probes=probe.decode(), every=every)
        return int(report["errors"])

    def observe(self, seconds: float) -> LoadResult:
        """Return the report of the open streams over the next ``seconds``."""
        return _load_result(self.send("observe", seconds=seconds))

    def close(self) -> None:
        """Close all open streams."""
        self.send("close")

    def in_background(self, work: Callable[[], LoadResult]) -> Callable[[], LoadResult]:
        """Start ``work`` of this generator in the background; calling the result waits for its report."""
        results: list[LoadResult] = []
        thread = threading.Thread(target=lambda: results.append(work()))
        thread.start()

        def wait() -> LoadResult:
            thread.join()
            return results[0]

        return wait

    def send(self, do: str, port: int = 0, load: Load | None = None, **more: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        command = {"do": do, "port": port, **more}
        if load is not None:
            command |= {"path": load.path, "body": load.body.decode(), "connections": load.connections}
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None and pipe_out is not None
        pipe_in.write(json.dumps(command).encode() + b"\n")
        pipe_in.flush()
        line = pipe_out.readline()
        if not line:
            raise RuntimeError(f"the load generator ended; its log ends: {self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _load_result(report: dict[str, Any]) -> LoadResult:
    seconds = report["seconds"]
    return LoadResult(
        replies=report["replies"],
        events=report["events"],
        errors=report["errors"],
        seconds=seconds,
        replies_per_s=report.get("replies_per_s", report["replies"] / seconds),
        events_per_s=report.get("events_per_s", report["events"] / seconds),
        p50_ms=report["latency_p50_ms"],
        p99_ms=report["latency_p99_ms"],
        max_ms=report["latency_p100_ms"],
        delay_p50_ms=report["delay_p50_ms"],
        delay_p99_ms=report["delay_p99_ms"],
        client_cpu=report["client_cpu"],
    )


def wrk_is_here() -> bool:
    """Return True if wrk is installed, so that it can send unary loads."""
    return shutil.which("wrk") is not None


def run_wrk(processes: Processes, port: int, load: Load, seconds: float) -> LoadResult:
    """Run the load of Generator.load with wrk, which counts in full seconds. Raises RuntimeError."""
    script, body = processes.folder / "wrk.lua", processes.folder / "wrk.body"
    script.write_text(_SCRIPT)
    body.write_bytes(load.body)
    command = [
        "wrk",
        "-t1",
        f"-c{load.connections}",
        f"-d{max(1, round(seconds))}s",
        "--timeout",
        "20s",
        "-s",
    ]
    url = f"http://127.0.0.1:{port}{load.path}"
    before = os.times()
    done = subprocess.run(
        [*command, str(script), url],
        env={**os.environ, "BENCH_BODY": str(body)},
        capture_output=True,
        text=True,
    )
    after = os.times()
    text = done.stderr.rpartition("@@ ")[2].split()
    if len(text) != 5:
        raise RuntimeError(f"wrk failed: {done.stderr[-300:]!r}")
    requests, took, p50, p99, errors = (int(each) for each in text)
    used = after.children_user + after.children_system - before.children_user - before.children_system
    rate = requests * 1e6 / took
    return LoadResult(
        replies=requests,
        errors=errors,
        seconds=took / 1e6,
        replies_per_s=rate,
        p50_ms=p50 / 1000,
        p99_ms=p99 / 1000,
        client_cpu=used * 1e6 / took,
    )
