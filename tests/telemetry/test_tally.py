"""Histograms count observations by bucket."""

from __future__ import annotations

import pytest

from gateway.telemetry.tally import Histogram


def test_observation_on_a_bound_counts_up_to_it() -> None:
    histogram = Histogram((0.0, 1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert list(histogram.cumulative()) == [("0.0", 1), ("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert histogram.total == 11.5


def test_merge_of_other_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter|longer"):
        Histogram((1.0,)).merge([1], 1.0)
