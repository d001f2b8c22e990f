"""``python -m tests.chaos.run.soak``: 1,000 streams for minutes, with samples of the gateway's resources."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from benchmarks import procfs
from benchmarks.processes import NotStarted, Processes
from benchmarks.svg import Panel, draw_panels
from tests.chaos.run import report, watch
from tests.chaos.run.flat import Series
from tests.chaos.run.rig import Load, Rig

STREAMS, TOKEN_DELAY = 1000, 0.5
#: The share of the time in which buffers and pools grow to their size, and its maximum in seconds; it is not
#: judged.
WARM_UP, LONGEST_WARM_UP = 0.5, 150.0
#: Name, unit, and how much each may grow: a share of its mean, or the least growth that counts.
JUDGED = (
    ("memory", " MiB", 0.05, 1.0),
    ("open files", "", 0.05, 0.0),
    ("loop lag", " ms", 0.25, 1.0),
    ("in flight", "", 0.05, 0.0),
)


class Samples:
    """The samples of each second: the time, then a value for each of JUDGED."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._lag = self._lags(watch.counters(rig.port))
        self.taken: list[tuple[float, ...]] = []

    def take(self, at: float) -> None:
        pid, now, before = self._rig.gateway.pid, watch.counters(self._rig.port), self._lag
        self._lag = self._lags(now)
        seconds, count = (after - earlier for after, earlier in zip(self._lag, before, strict=True))
        lag = 1000 * seconds / count if count else 0.0
        in_flight = watch.total(now, "inflight_requests")
        self.taken.append((at, self._rig.memory() / (1 << 20), watch.descriptors(pid), lag, in_flight))

    @property
    def start(self) -> float:
        """Return the time from which the samples are judged."""
        return min(WARM_UP * self.taken[-1][0], LONGEST_WARM_UP)

    def series(self, start: float) -> list[Series]:
        taken = [sample for sample in self.taken if sample[0] >= start]
        return [
            Series(name, unit, [(sample[0], sample[place]) for sample in taken], share, least)
            for place, (name, unit, share, least) in enumerate(JUDGED, 1)
        ]

    @staticmethod
    def _lags(found: watch.Counters) -> tuple[float, float]:
        name = "event_loop_delay_seconds"
        return watch.total(found, f"{name}_sum"), watch.total(found, f"{name}_count")


def main(arguments: Sequence[str]) -> int:
    """Return 1 if a series grew or a promise was broken, 2 if the run was not possible."""
    parser = report.parser("tests.chaos.run.soak", __doc__, 10.0)
    parser.add_argument("--streams", type=int, default=STREAMS, help="how many at once")
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    print(f"soak: {options.streams} streams, {options.minutes:g} minutes, seed {options.seed}", flush=True)
    try:
        with Processes(options.logs) as processes:
            rig = Rig(processes, options.seed, Load("soak", options.streams, TOKEN_DELAY))
            samples = Samples(rig)
            rig.round("s", 60 * options.minutes, each_second=samples.take)
            series = samples.series(samples.start)
            books = rig.books(int(series[0].points[0][1] * (1 << 20)), rig.rest())
    except NotStarted as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(f"{each.name:<12}{each.summary}" for each in series))
    if options.write_docs:
        machine = procfs.machine()
        about = (
            f"{options.streams} streams for {options.minutes:g} minutes, {machine['cores']} cores, "
            f"Python {machine['python']}, load average {load:.1f} before, {machine['load_average']} after"
        )
        _write_docs(about, samples, series)
    figures = {each.name: {"growth": each.growth, "samples": each.points} for each in series}
    broken = report.finish(options, books, (), series=figures)
    return 1 if broken or not all(each.flat for each in series) else 0


def _write_docs(about: str, samples: Samples, series: Sequence[Series]) -> None:
    panels = [
        Panel(each.name, each.unit, judged.summary, each.points)
        for each, judged in zip(samples.series(0.0), series, strict=True)
    ]
    plot = report.PAGE.with_suffix("") / "soak.svg"
    plot.parent.mkdir(exist_ok=True)
    plot.write_text(draw_panels("The gateway under 1,000 streams", about, "seconds", panels))
    rows = "\n".join(["| | |", "| --- | --- |", *(f"| {each.name} | {each.summary} |" for each in series)])
    report.write_page("soak", f"{about}.\n\n{rows}\n\n![The soak]({report.PAGE.stem}/soak.svg)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
