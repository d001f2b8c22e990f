"""What holds and what does not, in two lists.

Owns: gathering the verdicts of rows, bounds and curves. Must never enter: how any of them is reached.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.report import Report
from benchmarks.table import DOES_NOT, HOLDS


def lists(report: Report) -> str:
    """Markdown; what has no verdict is in neither list."""
    found = list(_all(report))
    parts = [
        f"{title}\n\n" + "\n".join(f"* {text}" for verdict, text in found if verdict == wanted)
        for title, wanted in (("**Does not hold:**", DOES_NOT), ("**Holds:**", HOLDS))
        if any(verdict == wanted for verdict, _ in found)
    ]
    return "\n\n".join(parts)


def _all(report: Report) -> Iterator[tuple[str, str]]:
    for row in report.table.values():
        ratio = "" if row.ratio is None else f"{row.ratio:.2f} x {row.best}; "
        yield row.verdict, f"{row.title}: {ratio}{row.bound}"
    for bound in report.bounds.values():
        if bound.holds is not None:
            text = f"{bound.title}: {bound.value:.3g} {bound.unit}; at most {bound.bound:g}"
            yield HOLDS if bound.holds else DOES_NOT, text
    for curve in report.curves.values():
        low, high = min(cost for _, cost in curve.points), max(cost for _, cost in curve.points)
        limit = "must not grow" if curve.others else "at most linearly"
        text = f"{curve.title}: {low:,.0f} to {high:,.0f} {curve.y}, exponent {curve.exponent:.2f}; {limit}"
        yield HOLDS if curve.holds else DOES_NOT, text
