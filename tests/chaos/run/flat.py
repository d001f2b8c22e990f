"""The check that a series of samples stays flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """Samples over seconds. A series is flat if, by the line through its samples, it grows between the first
    and the last by no more than ``share`` of its mean, or ``least`` if that is more. A falling series is
    flat.
    """

    name: str
    unit: str
    points: Points
    share: float
    least: float = 0.0

    @property
    def mean(self) -> float:
        return fmean(value for _, value in self.points)

    @property
    def growth(self) -> float:
        """Return the growth between the first sample and the last, in the unit of the samples."""
        line = linear_regression(*zip(*self.points, strict=True))
        return line.slope * (self.points[-1][0] - self.points[0][0])

    @property
    def flat(self) -> bool:
        return self.growth <= max(self.share * self.mean, self.least)

    @property
    def summary(self) -> str:
        word = "flat" if self.flat else "NOT FLAT"
        return f"mean {self.mean:.4g}{self.unit}, {self.growth:+.2g}{self.unit} over the run: {word}"
