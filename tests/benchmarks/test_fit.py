"""The exponent describes the growth of a cost, and the search finds the highest rate that is relayed."""

from __future__ import annotations

import pytest

from benchmarks.fit import at_most_linear, fit, flat
from benchmarks.knee import Step, report, search

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


def at(limit: float, rate: float) -> Step:
    return Step(
        rate, min(rate, limit), 1.0, 5.0 if rate <= limit else 90.0, min(1.0, rate / limit / 1.1), 0.1
    )


def test_search_closes_in_on_the_rate_that_is_borne() -> None:
    steps = search(lambda rate: at(30_000, rate), refinements=3)
    best = max(step.rate for step in steps if step.passed)
    assert 27_000 <= best <= 30_000


def test_knee_is_reported_with_the_reason_the_next_rate_failed() -> None:
    knee, cost = report(search(lambda rate: at(30_000, rate), refinements=0), 1000, "0 errors")
    assert knee.value == 27_000
    assert "27.0 a stream" in knee.note and "at 40500: 30000 received, p99 90 ms" in knee.note
    assert cost.unit == "us an event"


def test_gateway_that_passes_no_rate_is_reported() -> None:
    (found,) = report(search(lambda rate: at(10, rate), refinements=2), 1000, "0 errors")
    assert found.value == 0 and "no rate passed" in found.note
