"""The growth of a cost: an exponent fitted to a few points.

Owns: the fit and its meaning. Must never enter: measuring, I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Growth below this share of the fixed cost is noise, from which no exponent can be determined.
NOISE = 0.15
#: Exponents up to this one count as linear: five points on a shared machine allow no finer distinction.
LINEAR = 1.15
#: The highest cost over the lowest of a curve that must be flat.
FLAT = 1.25

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Fit:
    """cost = ``base`` + ``factor`` * size ** ``exponent``; with an exponent of 0 the cost does not grow."""

    base: float
    factor: float
    exponent: float

    def at(self, size: float) -> float:
        """Return the fitted cost."""
        power: float = size**self.exponent
        return self.base + self.factor * power


def fit(points: Points) -> Fit:
    """Return the fit with the least relative error among exponents up to 3."""
    candidates = [_with(points, step / 100) for step in range(5, 301)]
    best = min(candidates, key=lambda each: _error(each, points))
    largest = max(size for size, _ in points)
    if best.factor * largest**best.exponent <= NOISE * best.base:
        return Fit(sum(cost for _, cost in points) / len(points), 0.0, 0.0)
    return best


def _with(points: Points, exponent: float) -> Fit:
    """Return the best fit for this exponent: least squares of relative errors, with neither part below 0."""
    a = b = c = d = e = 0.0
    for size, cost in points:
        one, power = 1 / cost, size**exponent / cost
        a, b, c, d, e = a + one * one, b + one * power, c + power * power, d + one, e + power
    determinant = a * c - b * b
    if determinant > 0:
        base, factor = (d * c - e * b) / determinant, (a * e - b * d) / determinant
        if base >= 0 and factor >= 0:
            return Fit(base, factor, exponent)
    alone = (Fit(d / a, 0.0, exponent), Fit(0.0, e / c, exponent))
    return min(alone, key=lambda each: _error(each, points))


def _error(candidate: Fit, points: Points) -> float:
    return sum((candidate.at(size) / cost - 1) ** 2 for size, cost in points)


def at_most_linear(points: Points) -> bool:
    """Return True if the cost grows no faster than the size."""
    return fit(points).exponent <= LINEAR


def flat(points: Points) -> bool:
    """Return True if the cost does not depend on the size."""
    costs = [cost for _, cost in points]
    return max(costs) <= FLAT * min(costs)
