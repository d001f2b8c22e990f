"""``python -m tests.chaos.run.soak``: 1,000 streams for minutes, with samples of the gateway's resources.

Owns: the samples and the bounds on them, its options. Must never enter: the promises for a single request
(checker.py, which checks the records of this run, too).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import procfs
from benchmarks.processes import NotStarted, Processes
from benchmarks.svg import Panel, draw_panels
from tests.chaos.run import page, report, watch
from tests.chaos.run.checker import Case, check
from tests.chaos.run.flat import Series
from tests.chaos.run.records import Books
from tests.chaos.run.rig import Load, Rig

STREAMS, TOKEN_DELAY = 1000, 0.5
#: The share of the time in which buffers and pools grow to their size, and its maximum in seconds; it is not
#: judged.
WARM_UP, LONGEST_WARM_UP = 0.5, 150.0
_LAG = "event_loop_delay_seconds"


class Samples:
    """The samples of each second."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._before = watch.counters(rig.port)
        self.seconds: list[float] = []
        self.memory: list[float] = []
        self.descriptors: list[float] = []
        self.in_flight: list[float] = []
        self.lag: list[float] = []

    def take(self, at: float) -> None:
        """Take one sample, ``at`` seconds after the start."""
        pid, now = self._rig.gateway.pid, watch.counters(self._rig.port)
        seconds, count = (
            watch.total(now, f"{_LAG}_{part}") - watch.total(self._before, f"{_LAG}_{part}")
            for part in ("sum", "count")
        )
        self._before = now
        self.seconds.append(at)
        self.memory.append(procfs.resident(pid) / (1 << 20))
        self.descriptors.append(watch.descriptors(pid))
        self.in_flight.append(watch.total(now, "inflight_requests"))
        self.lag.append(1000 * seconds / count if count else 0.0)

    def series(self, start: float) -> list[Series]:
        """Return all series from ``start`` on."""
        reported = (
            ("memory", " MiB", self.memory, 0.05, 1.0),
            ("open files", "", self.descriptors, 0.05, 0.0),
            ("loop lag", " ms", self.lag, 0.25, 1.0),
            ("in flight", "", self.in_flight, 0.05, 0.0),
        )
        return [
            Series(
                name,
                unit,
                [point for point in zip(self.seconds, values, strict=True) if point[0] >= start],
                share,
                least,
            )
            for name, unit, values, share, least in reported
        ]


def main(arguments: Sequence[str]) -> int:
    """Return 1 if a series grew or a promise was broken, 2 if the run was not possible."""
    options = _parse(arguments)
    seed = options.seed or str(random.randrange(10**6))
    load = os.getloadavg()[0]
    print(f"soak: {options.streams} streams, {options.minutes:g} minutes, seed {seed}", flush=True)
    try:
        samples, books = _run(options, seed)
    except NotStarted as error:
        print(error, file=sys.stderr)
        return 2
    series, breaches = samples.series(_start(samples)), check(books)
    found = report.summary(seed, books, (), breaches)
    found["series"] = {
        each.name: {"mean": each.mean, "growth": each.growth, "samples": each.points} for each in series
    }
    lines = [f"{each.name:<12}{each.summary}" for each in series]
    print("\n".join(lines), report.text(found), sep="\n")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.write_docs:
        summary = _machine(load, options)
        plot = draw_panels("The gateway under 1,000 streams", summary, "seconds", _panels(samples, series))
        link = page.write_plot("soak", plot)
        rows = ["| | |", "| --- | --- |", *(f"| {each.name} | {each.summary} |" for each in series)]
        page.write("soak", "\n\n".join([summary + ".", "\n".join(rows), f"![The soak]({link})"]))
    if breaches:
        print(report.details(Case(books), breaches), file=sys.stderr)
    return 1 if breaches or not all(each.flat for each in series) else 0


def _run(options: argparse.Namespace, seed: str) -> tuple[Samples, Books]:
    with Processes(options.logs) as processes:
        rig = Rig(processes, seed, Load("soak", options.streams, TOKEN_DELAY))
        samples = Samples(rig)
        rig.round("s", 60 * options.minutes, each_second=samples.take)
        before = next(
            size for at, size in zip(samples.seconds, samples.memory, strict=True) if at >= _start(samples)
        )
        return samples, rig.books(int(before * (1 << 20)), rig.rest())


def _start(samples: Samples) -> float:
    """Return the time from which the samples are judged."""
    return min(WARM_UP * samples.seconds[-1], LONGEST_WARM_UP)


def _panels(samples: Samples, judged: Sequence[Series]) -> list[Panel]:
    complete = {each.name: each for each in samples.series(0.0)}
    return [Panel(each.name, each.unit, each.summary, complete[each.name].points) for each in judged]


def _machine(load: float, options: argparse.Namespace) -> str:
    machine = procfs.machine()
    return (
        f"{options.streams} streams for {options.minutes:g} minutes, {machine['cores']} cores, "
        f"Python {machine['python']}, load average {load:.1f} before, {machine['load_average']} after"
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the streams go on")
    parser.add_argument("--streams", type=int, default=STREAMS, help="how many at once")
    parser.add_argument("--seed", help="choices of an earlier run")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--write-docs", action="store_true", help="put plot and figures into the docs")
    parser.add_argument("--logs", type=Path, help="new folder to keep all records and logs in")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
