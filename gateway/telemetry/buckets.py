"""Where the bounds of histograms lie.

Owns: log-spaced bounds with two significant digits, as dashboards of this field expect them. Must never
enter: metrics themselves, settings, I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Bounds = tuple[float, ...]

MOST_BUCKETS = 512


@dataclass(frozen=True, slots=True)
class Buckets:
    """Upper bounds of each histogram, ascending, ``+Inf`` left out; seconds or tokens."""

    request_duration: Bounds
    input_sequence: Bounds
    output_sequence: Bounds
    ttft: Bounds
    itl: Bounds


def log_spaced(low: float, high: float, count: int) -> Bounds:
    """0, then ``count - 1`` bounds from above ``low`` up to ``high``, equally far apart on a log scale.

    Bounds are rounded to two significant digits and those that then coincide are given once. Raises
    ValueError, with the reason, where no such bounds exist.
    """
    if not (math.isfinite(low) and math.isfinite(high) and 0 < low < high):
        raise ValueError(f"the smallest bound must be above 0 and below the largest: {low:g}, {high:g}")
    if not 2 <= count <= MOST_BUCKETS:
        raise ValueError(f"there can be 2 to {MOST_BUCKETS} buckets: {count}")
    ratio = high / low
    bounds = {_two_digits(low * ratio ** (step / (count - 1))) for step in range(1, count)}
    return (0.0, *sorted(bounds))


def _two_digits(value: float) -> float:
    return float(f"{value:.1e}")
