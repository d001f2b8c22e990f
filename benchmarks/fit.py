"""How a cost grows: an exponent fitted to a few points.

Owns: the fit and what it means. Must never enter: measuring, I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Growth that is smaller than this share of the fixed cost is noise: no exponent can be told from it.
NOISE = 0.15
#: Exponents up to this one count as linear: five points on a shared machine tell no more.
LINEAR = 1.15
#: What others may cost: the dearest point over the cheapest.
FLAT = 1.25

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Fit:
    """cost = ``base`` + ``factor`` * size ** ``exponent``; an exponent of 0: the cost does not grow."""

    base: float
    factor: float
    exponent: float

    def at(self, size: float) -> float:
        """The fitted cost."""
        power: float = size**self.exponent
        return self.base + self.factor * power


def fit(points: Points) -> Fit:
    """The exponent, up to 3, with which ``base`` and ``factor`` come closest to the points, relatively."""
    candidates = [_with(points, step / 100) for step in range(5, 301)]
    best = min(candidates, key=lambda each: _error(each, points))
    largest = max(size for size, _ in points)
    if best.factor * largest**best.exponent <= NOISE * best.base:
        return Fit(sum(cost for _, cost in points) / len(points), 0.0, 0.0)
    return best


def _with(points: Points, exponent: float) -> Fit:
    """The best fit with this exponent: least squares of relative errors, neither part below 0."""
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
    """Whether what a thing costs grows no faster than the thing."""
    return fit(points).exponent <= LINEAR


def flat(points: Points) -> bool:
    """Whether a cost keeps still while there is more of something else."""
    costs = [cost for _, cost in points]
    return max(costs) <= FLAT * min(costs)
