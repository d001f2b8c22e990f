"""The table: every load on every target in interleaved rounds, and the figure of each row.

Owns: the order of the rounds, medians, ratios, verdicts. Must never enter: processes, how it is printed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.bench import Bench, Sample
from benchmarks.loads import Figure, Row
from benchmarks.targets import BUILDS, COMPILED, DIRECT, FLOOR, GATEWAY, Target

HOLDS, DOES_NOT, UNKNOWN = "holds", "does not hold", "nothing to compare with"

#: Round -> target -> sample.
Rounds = Sequence[Mapping[str, Sample]]


@dataclass(frozen=True)
class Result:
    """The result of a row: the median of each target, the best router, and the gateway's ratio to it."""

    name: str
    title: str
    unit: str
    values: Mapping[str, float]
    best: str | None
    ratio: float | None
    bound: str
    verdict: str
    errors: Mapping[str, int]
    #: Requests or events a second of each target, and the load generator's own share of a core.
    speeds: Mapping[str, float]
    generator: str
    generator_cores: Mapping[str, float]
    #: The ratio of the compiled build, if it was measured.
    compiled_ratio: float | None = None
    compiled_verdict: str | None = None

    @property
    def verdicts(self) -> Iterator[tuple[str, float | None, str]]:
        """Return name, ratio and verdict of each build that was measured."""
        yield GATEWAY, self.ratio, self.verdict
        if self.compiled_verdict is not None:
            yield COMPILED, self.compiled_ratio, self.compiled_verdict


def run_row(bench: Bench, row: Row, targets: Sequence[Target]) -> list[dict[str, Sample]]:
    """Run all rounds of one row. Each visits every target, so that other work on the machine affects all
    alike.
    """
    takers = [target for target in targets if row.load.path in target.paths]
    rounds = []
    for number in range(bench.scale.rounds):
        bench.say(f"{row.title}: round {number + 1} of {bench.scale.rounds}")
        rounds.append({each.name: bench.sample(each, row.load, bench.scale.seconds) for each in takers})
    return rounds


def result_of(row: Row, rounds: Rounds) -> Result:
    """Compute the medians of ``rounds`` and the verdict."""
    names = list(rounds[0])
    values = {name: value for name in names if (value := _median(row.figure, name, rounds)) is not None}
    best = best_router(row.figure, values)
    ratio, verdict = judge(row, values, best)
    compiled = judge(row, values, best, COMPILED) if COMPILED in values else (None, None)
    return Result(
        row.name,
        row.title,
        row.figure.value,
        values,
        best,
        ratio,
        bound_of(row),
        verdict,
        {name: errors for name in names if (errors := sum(each[name].seen.errors for each in rounds))},
        {name: statistics.median(_speed(row.figure, each[name]) for each in rounds) for name in names},
        rounds[0][names[0]].generator,
        {name: statistics.median(each[name].seen.client_cpu for each in rounds) for name in names},
        *compiled,
    )


def best_router(figure: Figure, values: Mapping[str, float]) -> str | None:
    """Return the best of the routers that understand the requests: not the worker itself, nor HAProxy."""
    routers = [name for name in values if name not in (DIRECT, FLOOR, *BUILDS)]
    better = max if figure is Figure.THROUGHPUT else min
    return better(routers, key=lambda name: values[name]) if routers else None


def judge(
    row: Row, values: Mapping[str, float], best: str | None, build: str = GATEWAY
) -> tuple[float | None, str]:
    """Return the ratio of a build to the best router, and True if it keeps the row's bound."""
    ours = values.get(build)
    ratio = ours / values[best] if ours is not None and best is not None and values[best] > 0 else None
    if row.figure is Figure.THROUGHPUT:
        if ours is None:
            return ratio, UNKNOWN
        return ratio, HOLDS if ours >= row.bound else DOES_NOT
    if ratio is None:
        return None, UNKNOWN
    return ratio, HOLDS if ratio <= row.bound else DOES_NOT


def bound_of(row: Row) -> str:
    """Return the bound as text."""
    if row.figure is Figure.THROUGHPUT:
        return f"at least {row.bound:.1f} x direct"
    aim = f"; aim {row.aim}" if row.aim is not None else ""
    return f"at most {row.bound:g} x the best router{aim}"


def _median(figure: Figure, name: str, rounds: Rounds) -> float | None:
    values = [value for each in rounds if (value := _value(figure, each[name], each.get(DIRECT))) is not None]
    return statistics.median(values) if values else None


def _value(figure: Figure, sample: Sample, direct: Sample | None) -> float | None:
    """Return the figure of a sample, or None if there is none: a worker's processor time is not the
    gateway's.
    """
    if figure is Figure.THROUGHPUT:
        rate = direct.seen.events_per_s if direct is not None else 0.0
        return sample.seen.events_per_s / rate if rate else None
    if sample.target == DIRECT:
        return None
    if figure is Figure.ADDED:
        alone = direct.seen.p50_ms if direct is not None else None
        return sample.seen.p50_ms - alone if sample.seen.p50_ms is not None and alone is not None else None
    return sample.request_us if figure is Figure.REQUEST else sample.event_us


def _speed(figure: Figure, sample: Sample) -> float:
    of_events = figure in (Figure.EVENT, Figure.THROUGHPUT)
    return sample.seen.events_per_s if of_events else sample.seen.replies_per_s


def raw(row: str, rounds: Rounds) -> Iterable[dict[str, Any]]:
    """Return every sample unchanged."""
    for number, samples in enumerate(rounds):
        for sample in samples.values():
            yield {"row": row, "round": number, **asdict(sample)}
