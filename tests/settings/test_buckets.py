"""Histogram bounds are those of the dashboards in use."""

from __future__ import annotations

import pytest

from gateway.settings.buckets import log_spaced


@pytest.mark.parametrize(
    ("low", "high", "count", "bounds"),
    [
        (1, 512, 10, (0, 2, 4, 8, 16, 32, 64, 130, 260, 510)),
        (50, 128000, 12, (0, 100, 210, 430, 870, 1800, 3600, 7400, 15000, 31000, 63000, 130000)),
    ],
)
def test_bounds_are_log_spaced_with_two_digits(
    low: float, high: float, count: int, bounds: tuple[float, ...]
) -> None:
    assert log_spaced(low, high, count) == bounds


def test_bounds_that_coincide_are_given_once() -> None:
    bounds = log_spaced(1, 1.1, 100)
    assert len(set(bounds)) == len(bounds)
    assert list(bounds) == sorted(bounds)


@pytest.mark.parametrize(
    ("low", "high", "count"),
    [(0, 1, 5), (2, 1, 5), (1, 1, 5), (1, float("inf"), 5), (float("nan"), 1, 5), (1, 2, 1), (1, 2, 513)],
)
def test_bounds_that_cannot_exist_are_refused(low: float, high: float, count: int) -> None:
    with pytest.raises(ValueError, match="bound|buckets"):
        log_spaced(low, high, count)
