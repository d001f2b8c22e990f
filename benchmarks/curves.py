"""A curve: the cost of an operation over a size, and the check that it grows no faster than allowed.

Owns: the verdict on a curve. Must never enter: how its points are measured, drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fit import at_most_linear, fit, flat


@dataclass(frozen=True)
class Curve:
    """The cost over a size, with the names of both axes.

    ``others``: the size belongs to something else, and the cost must not depend on it at all.
    """

    name: str
    title: str
    x: str
    y: str
    points: Sequence[tuple[float, float]]
    others: bool = False
    note: str = ""

    @property
    def exponent(self) -> float:
        """Return the exponent with which the cost grows, 0 if it does not grow."""
        return fit(self.points).exponent

    @property
    def holds(self) -> bool:
        """Return True if the cost grows no faster than allowed."""
        return flat(self.points) if self.others else at_most_linear(self.points)
