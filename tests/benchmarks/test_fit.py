"""The exponent describes the growth of a cost, whatever its fixed part."""

from __future__ import annotations

import pytest

from benchmarks.fit import at_most_linear, fit, flat

SIZES = (10, 100, 1_000, 10_000, 128_000)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("base", [0.0, 90.0])
def test_exponent_of_exact_points_is_found(base: float, exponent: float) -> None:
    """A fixed cost beside the growing one does not hide the exponent."""
    points = [(size, base + 500 * (size / SIZES[-1]) ** exponent) for size in SIZES]
    assert fit(points).exponent == pytest.approx(exponent, abs=0.02)


def test_noise_of_a_tenth_leaves_linear_linear_and_quadratic_is_more() -> None:
    noise = (1.1, 0.9, 1.1, 0.9, 1.05)
    assert at_most_linear([(size, (90 + 0.01 * size) * n) for size, n in zip(SIZES, noise, strict=True)])
    assert not at_most_linear([(size, 90 + 1e-5 * size**2) for size in SIZES])


def test_cost_that_rises_by_a_third_is_not_flat() -> None:
    assert flat([(10, 90.0), (5_000, 110.0)])
    assert not flat([(10, 90.0), (5_000, 120.0)])
