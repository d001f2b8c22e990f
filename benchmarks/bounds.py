"""Measurements with a fixed bound and no other router beside it: memory, large bodies, start, stop,
processes.

Owns: these measurements. Must never enter: the loads of the table, growth.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks import procfs
from benchmarks.bench import Bench, Sample
from benchmarks.dialects import SGLANG, Knobs
from benchmarks.generators import Load
from benchmarks.loads import ROWS, Figure, Row
from benchmarks.processes import end
from benchmarks.targets import Target

KIB, MIB = 1 << 10, 1 << 20
WARM = Load(SGLANG.path, SGLANG.request(8, 1), 16)
#: A pause that outlasts every measurement, in microseconds.
SILENCE = 3_600_000_000
#: About 25 MB of token ids.
LARGE_PROMPT = 4_250_000
PROCESS_COUNTS = (1, 2)
#: Clients that read a large reply at the same time.
READERS = 4


@dataclass(frozen=True)
class Bound:
    """A figure and its bound: the most it may be or, with ``least``, the least. Without ``bound`` it is only
    reported.
    """

    name: str
    title: str
    value: float
    unit: str
    bound: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """Return True if the figure keeps its bound, None if it has none."""
        return None if self.bound is None else self.value <= self.bound


def idle_memory(bench: Bench) -> list[Bound]:
    """Measure the memory of a stream that has begun and then waits."""
    gateway = bench.gateway("gateway-memory")
    bench.generator.load(gateway.port, WARM, bench.scale.seconds)
    count = min(2 * bench.scale.connections, 1000 if bench.scale.rounds == 1 else 2000)
    waiting = Load(SGLANG.path, SGLANG.request(8, 2, stream=True, knobs=Knobs(pause_us=SILENCE)), count)
    before = _resident(gateway)
    errors = bench.second.open(gateway.port, waiting)
    time.sleep(0.5)
    grown = _resident(gateway) - before
    bench.second.close()
    end(gateway.process)
    note = f"{count} streams that wait after their first event; {errors} errors"
    return [Bound("idle-memory", "memory of an idle open exchange", grown / count / KIB, "KiB", 40, note)]


def large_reply(bench: Bench) -> list[Bound]:
    """Measure the memory used for a reply of 64 MiB whose client reads 32 MiB/s.

    Several clients read at once, because memory that one reply uses for a moment stays with the process and
    serves the others.
    """
    size = 64 * MIB
    unary = SGLANG.request(8, 1, knobs=Knobs(size=size))
    events = SGLANG.request(8, size // (64 * KIB), stream=True, knobs=Knobs(size=64 * KIB))
    found = []
    for name, title, body in (
        ("large-reply", "held of a 64 MiB unary reply", unary),
        ("large-stream", "held of a stream of 64 MiB in events of 64 KiB", events),
    ):
        gateway = bench.gateway(f"gateway-{name}")
        bench.generator.load(gateway.port, WARM, 0.5)
        before = _resident(gateway)
        with Peak(gateway) as peak:
            seen = bench.generator.once(gateway.port, Load(SGLANG.path, body, READERS), read_rate=32 * MIB)
        note = f"each of {READERS} at once, read at 32 MiB/s in {seen.seconds:.1f} s; {seen.errors} errors"
        found.append(Bound(name, title, max(0, peak.value - before) / MIB / READERS, "MiB", 2, note))
        end(gateway.process)
    return found


class Peak:
    """A context manager that samples the memory of ``target`` every 10 ms and keeps the highest value."""

    def __init__(self, target: Target) -> None:
        self.value = 0
        self._target = target
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            self.value = max(self.value, _resident(self._target))


def large_body(bench: Bench) -> list[Bound]:
    """Measure the latency of small requests while bodies of 25 MB arrive one after another."""
    gateway = bench.gateway("gateway-body")
    # Sent at fixed times: a client that waits for each reply would send fewer requests just when it is slow.
    small = replace(WARM, connections=8, interval=0.02)
    body = SGLANG.request(LARGE_PROMPT, 1)
    large = Load(SGLANG.path, body, 1)
    seconds = max(2.0, bench.scale.seconds)
    alone = bench.generator.load(gateway.port, small, seconds)
    finish = bench.second.in_background(lambda: bench.second.load(gateway.port, large, seconds))
    beside = bench.generator.load(gateway.port, small, seconds)
    bodies = finish()
    end(gateway.process)
    note = (
        f"{bodies.replies} bodies of {len(body) / 1e6:.1f} MB meanwhile; worst {beside.max_ms or 0:.0f} ms; "
        f"without them p99 {alone.p99_ms or 0:.1f} ms; {beside.errors + bodies.errors} errors"
    )
    return [
        Bound("large-body", "p99 of small requests beside 25 MB bodies", beside.p99_ms or 0, "ms", 300, note)
    ]


def start_and_stop(bench: Bench) -> list[Bound]:
    """Measure the time from the start to the first 200 on the generate path, and from SIGTERM to the exit
    when idle.
    """
    starts, ends = [], []
    for number in range(max(2, bench.scale.growth_rounds)):
        gateway = bench.gateway(f"gateway-start-{number}")
        starts.append(gateway.first_reply)
        # Exchanges that have ended, on connections that are kept.
        bench.second.open(gateway.port, replace(WARM, connections=64))
        ends.append(end(gateway.process))
        bench.second.close()
    note = f"median of {len(starts)}"
    return [
        Bound("start", "start to the first 200 on /generate", statistics.median(starts), "s", 1, note),
        Bound("stop", "SIGTERM to exit, 64 kept connections", statistics.median(ends), "s", None, note),
    ]


def processes(bench: Bench) -> list[Bound]:
    """Measure the unary load and the paced streams with one process and with two."""
    text = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", "--help"],
        capture_output=True,
        text=True,
        cwd=bench.checkout,
    )
    if "--processes" not in text.stdout:
        bench.say("left out: this gateway has no --processes")
        return []
    gateways = [
        bench.gateway(f"gateway-{count}p", flags=("--processes", str(count))) for count in PROCESS_COUNTS
    ]
    found = []
    for row in (each for each in ROWS if each.name in ("unary", "paced")):
        rounds = [
            [bench.sample(gateway, row.load, bench.scale.seconds) for gateway in gateways]
            for _ in range(bench.scale.growth_rounds)
        ]
        found += [
            _on_processes(row, count, taken)
            for count, taken in zip(PROCESS_COUNTS, zip(*rounds, strict=True), strict=True)
        ]
    for gateway in gateways:
        end(gateway.process)
    return found


def _on_processes(row: Row, count: int, taken: Sequence[Sample]) -> Bound:
    if row.figure is Figure.REQUEST:
        cost = statistics.median(each.request_us for each in taken)
        note = f"{statistics.median(each.seen.replies_per_s for each in taken):,.0f} requests/s"
    else:
        cost = statistics.median(each.event_us for each in taken)
        note = f"{statistics.median(each.seen.events_per_s for each in taken):,.0f} events/s"
    title = f"{row.title}: {count} process{'es' if count > 1 else ''}"
    return Bound(f"processes-{row.name}-{count}", title, cost, row.figure.value, None, note)


def _resident(target: Target) -> int:
    return procfs.resident(target.pid)


#: Name on the command line -> measurement, which may return several figures.
BOUNDS: dict[str, Callable[[Bench], list[Bound]]] = {
    "idle-memory": idle_memory,
    "large-reply": large_reply,
    "large-body": large_body,
    "start-stop": start_and_stop,
    "processes": processes,
}
