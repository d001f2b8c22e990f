"""The search for the highest event rate that one process relays in time for thousands of open streams.

Owns: the search for that rate. Must never enter: other loads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.bounds import Bound
from benchmarks.dialects import SGLANG, TEMPO, TEMPO_STAMPED, Knobs
from benchmarks.generators import Load
from benchmarks.processes import end
from benchmarks.targets import Target

#: The delay of events from which they count as late, p99, in milliseconds.
LATE = 50.0
#: The share of one core from which the gateway counts as full.
FULL_CORE = 0.97
#: An event rate that any gateway relays without delay, used between two steps.
EASY = 2_000.0
_FOREVER = 100_000_000


@dataclass(frozen=True)
class Step:
    """One step of the search, with rates in events a second over all streams."""

    rate: float
    events_per_s: float
    p50_ms: float
    p99_ms: float
    core: float
    client_cpu: float

    @property
    def passed(self) -> bool:
        """Return True if all events arrived in time and the gateway's core was not full."""
        return self.p99_ms <= LATE and self.core < FULL_CORE and self.events_per_s > 0.95 * self.rate


def knee(bench: Bench) -> list[Bound]:
    """Open the streams, raise the rate until a step fails, then halve the last increase twice."""
    gateway = bench.gateway("gateway-streams")
    streams = min(bench.scale.streams, bench.scale.connections)
    load = Load(SGLANG.path, SGLANG.request(8, _FOREVER, stream=True, knobs=Knobs(pace=TEMPO)), streams)
    probe = SGLANG.request(8, _FOREVER, stream=True, knobs=Knobs(pace=TEMPO_STAMPED))
    bench.workers.tempo(EASY / streams)
    errors = bench.second.open(gateway.port, load, probe=probe, every=16)
    steps = search(
        lambda rate: _step(bench, gateway, streams, rate), refinements=2 if bench.scale.rounds > 1 else 0
    )
    bench.second.close()
    seconds = end(gateway.process)
    return report(steps, streams, f"{errors} errors, exit {seconds:.2f} s after SIGTERM")


def search(step: Callable[[float], Step], refinements: int, first: float = 8_000.0) -> list[Step]:
    """Return steps from ``first`` events/s, each half as much again, until one fails, then between."""
    steps = [step(first)]
    while steps[-1].passed and len(steps) < 12:
        steps.append(step(steps[-1].rate * 1.5))
    for _ in range(refinements):
        good = [each.rate for each in steps if each.passed]
        bad = (
            min(each.rate for each in steps if not each.passed)
            if not all(each.passed for each in steps)
            else 0.0
        )
        if good and bad:
            steps.append(step((max(good) + bad) / 2))
    return steps


def _step(bench: Bench, gateway: Target, streams: int, rate: float) -> Step:
    # The buffers filled by an overload must be empty, and the interval of the old tempo must be over.
    bench.workers.tempo(EASY / streams)
    time.sleep(0.5)
    bench.workers.tempo(rate / streams)
    time.sleep(streams / EASY + 0.5)
    seconds = max(2.0, bench.scale.seconds)
    before = gateway.cpu_seconds()
    seen = bench.second.observe(seconds)
    core = (gateway.cpu_seconds() - before) / seen.seconds
    late = seen.delay_p99_ms if seen.delay_p99_ms is not None else float("inf")
    step = Step(rate, seen.events_per_s, seen.delay_p50_ms or 0.0, late, core, seen.client_cpu)
    bench.say(
        f"{streams} streams, {rate:.0f} events/s requested: {step.events_per_s:.0f} received, "
        f"p50 {step.p50_ms:.1f} ms, p99 {step.p99_ms:.1f} ms, gateway {core:.0%}, "
        f"generator {step.client_cpu:.0%} of a core"
    )
    return step


def report(steps: list[Step], streams: int, note: str) -> list[Bound]:
    """Return the highest rate that passed, its figures, and the reason why the next rate failed."""
    passed = [each for each in steps if each.passed]
    if not passed:
        return [
            Bound("open-streams", f"{streams} open streams", 0, "events/s", None, f"no rate passed; {note}")
        ]
    best = max(passed, key=lambda each: each.rate)
    above = [each for each in steps if not each.passed]
    why = "no limit was found"
    if above:
        over = min(above, key=lambda each: each.rate)
        received = f"{over.events_per_s:.0f} received"
        why = f"at {over.rate:.0f}: {received}, p99 {over.p99_ms:.0f} ms, {over.core:.0%} of a core"
    text = (
        f"{best.events_per_s / streams:.1f} a stream; p50 {best.p50_ms:.1f} ms, p99 {best.p99_ms:.1f} ms, "
        f"{best.core:.0%} of a core, generator {best.client_cpu:.0%}; {why}; {note}"
    )
    cost = best.core * 1e6 / best.events_per_s
    return [
        Bound("open-streams", f"{streams} open streams: the knee", best.events_per_s, "events/s", None, text),
        Bound("open-streams-cost", f"{streams} open streams, at the knee", cost, "us an event", None, ""),
    ]
