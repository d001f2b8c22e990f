"""The report of a run, as JSON and as text.

Owns: the shape of the report, its merging and its tables. Must never enter: measuring, the page of the docs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.bounds import Bound
from benchmarks.curves import Curve
from benchmarks.loads import ROWS, Figure
from benchmarks.table import DOES_NOT, HOLDS, Result
from benchmarks.targets import (
    BASELINE,
    BASELINE_COMPILED,
    BUILDS,
    COMPILED,
    DIRECT,
    FLOOR,
    GATEWAY,
    Target,
)


@dataclass
class Report:
    """The results of one run, or of several merged: the latest result of each row, bound and curve."""

    machine: dict[str, Any]
    command: list[str]
    mode: str
    targets: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    table: dict[str, Result] = field(default_factory=dict)
    bounds: dict[str, Bound] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    def add_targets(self, targets: Iterable[Target]) -> None:
        """Note the targets of the run."""
        self.targets |= {each.name: {"version": each.version, "command": each.command} for each in targets}

    def add(self, other: Report) -> None:
        """Merge the results of a later run."""
        for name in ("targets", "table", "bounds", "curves"):
            getattr(self, name).update(getattr(other, name))
        self.samples += other.samples
        self.command += [each for each in other.command if each not in self.command]
        self.missing += [each for each in other.missing if each not in self.missing]

    def write(self, path: Path) -> None:
        """Write the report as JSON, with the verdicts that follow from it."""
        document = asdict(self)
        for name, bound in self.bounds.items():
            document["bounds"][name]["holds"] = bound.holds
        for name, curve in self.curves.items():
            document["curves"][name] |= {"exponent": curve.exponent, "holds": curve.holds}
        path.write_text(json.dumps(document, indent=1) + "\n")


def read(path: Path) -> Report:
    """Read a report from a file."""
    document = json.loads(path.read_text())
    document["table"] = {name: Result(**each) for name, each in document["table"].items()}
    document["bounds"] = {name: Bound(**_without(each, "holds")) for name, each in document["bounds"].items()}
    document["curves"] = {
        name: Curve(**_without(each, "exponent", "holds")) for name, each in document["curves"].items()
    }
    return Report(**document)


def _without(members: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in members.items() if name not in names}


def text(report: Report) -> str:
    """Return the report in Markdown."""
    parts = [machine_line(report), *notices(report)]
    if report.table:
        parts += [table(report), generators(report)]
        if BASELINE in report.targets:
            parts.append(changes(report))
    if report.bounds:
        parts.append(bounds(report))
    if report.curves:
        parts.append(curves(report))
    return "\n\n".join(parts)


def machine_line(report: Report) -> str:
    """Describe the machine and the commit in one sentence."""
    m = report.machine
    gateway = report.targets.get(GATEWAY, {}).get("version", "unknown")
    return (
        f"{m['cores']} cores of {m['processor']}, {m['memory_gib']} GiB, Linux {m['kernel']}, Python "
        f"{m['python']}, load average {m['load_average']} at the start; commit {gateway}, {report.date}."
    )


def notices(report: Report) -> list[str]:
    """Return a prominent notice for each target that was missing."""
    return [f"**MISSING:** {each}" for each in report.missing]


def table(report: Report) -> str:
    """Return the table of all rows and targets."""
    named = [
        DIRECT,
        FLOOR,
        *(name for name in report.targets if name not in (DIRECT, FLOOR, *BUILDS)),
        *BUILDS,
    ]
    names = [name for name in named if any(name in row.values for row in report.table.values())]
    heads = ["load", *(_head(report, name) for name in names), "to the best router", "bound", "verdict"]
    rows = [
        [
            f"{result.title}: {result.unit}",
            *(_figure(result, name) for name in names),
            " / ".join("–" if ratio is None else f"{ratio:.2f}" for _, ratio, _ in result.verdicts),
            result.bound,
            " / ".join(_verdict(verdict) for _, _, verdict in result.verdicts),
        ]
        for result in _in_order(report.table)
    ]
    errors = [
        f"{row.title}: {name} {count}" for row in report.table.values() for name, count in row.errors.items()
    ]
    notice = f"\n\nErrors: {'; '.join(errors)}." if errors else ""
    return _markdown(heads, rows) + notice


def changes(report: Report) -> str:
    """Return how each build compares with the same build of the baseline, as ratios of medians."""
    rows = [
        [result.title, _change(result, GATEWAY, BASELINE), _change(result, COMPILED, BASELINE_COMPILED)]
        for result in _in_order(report.table)
    ]
    return _markdown(["load", "pure Python, to the baseline", "compiled, to the baseline"], rows)


def _change(result: Result, build: str, baseline: str) -> str:
    now, before = result.values.get(build), result.values.get(baseline)
    return f"{now / before:.3f}" if now is not None and before else "–"


def generators(report: Report) -> str:
    """Show that the load generator is not the bottleneck: its share of a core, and its direct throughput."""
    rows = [
        [
            result.title,
            result.generator if result.generator == "wrk" else "our own",
            f"{result.generator_cores[GATEWAY]:.0%}",
            f"{result.speeds[GATEWAY]:,.0f}",
            f"{result.speeds[DIRECT]:,.0f}",
            f"{result.generator_cores[DIRECT]:.0%}",
        ]
        for result in _in_order(report.table)
    ]
    heads = ["load", "generator", "of a core", "a second, through the gateway", "directly", "of a core"]
    return _markdown(heads, rows)


def _head(report: Report, name: str) -> str:
    version = report.targets.get(name, {}).get("version", "")
    return name if name in (GATEWAY, COMPILED, DIRECT) or not version else f"{name} {version}"


def _in_order(found: Mapping[str, Result]) -> list[Result]:
    return [found[row.name] for row in ROWS if row.name in found]


def _figure(result: Result, name: str) -> str:
    value = result.values.get(name)
    if value is None:
        return "–"
    digits = {Figure.ADDED.value: 3, Figure.THROUGHPUT.value: 2}.get(result.unit, 1)
    shown = f"{value:.{digits}f}"
    return f"**{shown}**" if name == result.best else shown


def _verdict(verdict: str) -> str:
    return f"**{verdict}**" if verdict == DOES_NOT else verdict


def bounds(report: Report) -> str:
    """Return the table of the figures with a fixed bound."""
    rows = []
    for each in report.bounds.values():
        bound = "–" if each.bound is None else f"at most {each.bound:g} {each.unit}"
        verdict = {None: "–", True: HOLDS, False: _verdict(DOES_NOT)}[each.holds]
        rows.append([each.title, f"{_short(each.value)} {each.unit}", bound, verdict, each.note])
    return _markdown(["what", "measured", "bound", "verdict", "how"], rows)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def curves(report: Report) -> str:
    """Return the table of the growth of cost."""
    rows = []
    for each in report.curves.values():
        costs = "; ".join(f"{size:,.0f}: {_short(cost)}" for size, cost in each.points)
        limit = "not at all (25 % of noise)" if each.others else "no faster than its size (exponent 1.15)"
        rows.append(
            [
                each.title,
                f"{each.y}: {costs}",
                f"{each.exponent:.2f}",
                limit,
                HOLDS if each.holds else _verdict(DOES_NOT),
            ]
        )
    return _markdown(["what", "cost", "exponent", "may grow", "verdict"], rows)


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
