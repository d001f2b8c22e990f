"""The bucket bounds of the histograms.

Owns: the list of histograms that have configured bounds. Must never enter: how bounds are computed, a count.
"""

from __future__ import annotations

from dataclasses import dataclass

Bounds = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Buckets:
    """The ascending upper bounds of each histogram, without ``+Inf``, in seconds or tokens."""

    request_duration: Bounds
    input_sequence: Bounds
    output_sequence: Bounds
    ttft: Bounds
    itl: Bounds
