"""A curve: what something costs over a size, and whether it grows no faster than it may.

Owns: the verdict on a curve. Must never enter: how its points are taken, drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fit import at_most_linear, fit, flat


@dataclass(frozen=True)
class Curve:
    """Cost over size, with the names of both axes.

    ``others``: the size is that of something else, and the cost must not follow it at all.
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
        """With which the cost grows; 0: it does not."""
        return fit(self.points).exponent

    @property
    def holds(self) -> bool:
        """Whether it grows no faster than it may."""
        return flat(self.points) if self.others else at_most_linear(self.points)
