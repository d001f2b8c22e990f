"""The bounds of histogram buckets, computed from their settings.

Owns: log-spaced bounds with two significant digits, as dashboards of this field expect them. Must never
enter: a setting, a histogram.
"""

from __future__ import annotations

import math

BUCKETS_LIMIT = 512


def log_spaced(low: float, high: float, count: int) -> tuple[float, ...]:
    """Return 0 and ``count - 1`` bounds above ``low`` up to ``high``, evenly spaced on a logarithmic scale.

    The bounds are rounded to two significant digits; equal ones are returned once. Raise ValueError, with
    the reason, if there are no such bounds.
    """
    if not (math.isfinite(low) and math.isfinite(high) and 0 < low < high):
        raise ValueError(f"the smallest bound must be above 0 and below the largest: {low:g}, {high:g}")
    if not 2 <= count <= BUCKETS_LIMIT:
        raise ValueError(f"there can be 2 to {BUCKETS_LIMIT} buckets: {count}")
    ratio = high / low
    values = (low * ratio ** (step / (count - 1)) for step in range(1, count))
    bounds = {float(f"{value:.1e}") for value in values}
    return (0.0, *sorted(bounds))
