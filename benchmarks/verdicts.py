"""The verdicts of a report, in a list of kept bounds and a list of missed ones.

Owns: collecting the verdicts of rows, bounds and curves. Must never enter: how any of them is reached.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.loads import Figure
from benchmarks.report import Report
from benchmarks.table import DOES_NOT, HOLDS, Result
from benchmarks.targets import COMPILED, DIRECT, GATEWAY

_BUILDS = {GATEWAY: "pure Python", COMPILED: "compiled"}


def lists(report: Report) -> str:
    """Return both lists in Markdown; a row without a verdict is in neither."""
    found = list(_all(report))
    parts = [
        f"{title}\n\n" + "\n".join(f"* {text}" for verdict, text in found if verdict == wanted)
        for title, wanted in (("**Does not hold:**", DOES_NOT), ("**Holds:**", HOLDS))
        if any(verdict == wanted for verdict, _ in found)
    ]
    return "\n\n".join(parts)


def _all(report: Report) -> Iterator[tuple[str, str]]:
    for row in report.table.values():
        for build, ratio, verdict in row.verdicts:
            yield verdict, f"{row.title}, {_BUILDS[build]}: {_ratio_text(row, build, ratio)}{row.bound}"
    for bound in report.bounds.values():
        if bound.holds is not None:
            text = f"{bound.title}: {bound.value:.3g} {bound.unit}; at most {bound.bound:g}"
            yield HOLDS if bound.holds else DOES_NOT, text
    for curve in report.curves.values():
        low, high = min(cost for _, cost in curve.points), max(cost for _, cost in curve.points)
        limit = "must not grow" if curve.others else "at most linearly"
        text = f"{curve.title}: {low:,.0f} to {high:,.0f} {curve.y}, exponent {curve.exponent:.2f}; {limit}"
        yield HOLDS if curve.holds else DOES_NOT, text


def _ratio_text(row: Result, build: str, ratio: float | None) -> str:
    """Return the ratio that the row's bound is about: to a worker asked directly for the burst, else to the
    best router.
    """
    if row.unit == Figure.THROUGHPUT.value:
        return f"{row.values[build]:.2f} x {DIRECT}; " if build in row.values else ""
    return "" if ratio is None else f"{ratio:.2f} x {row.best}; "
