"""Settings: metrics.

Owns: the prefix of metrics, and the buckets of histograms. Must never enter: a metric.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import field_validator, model_validator

from gateway.settings.buckets import BUCKETS_LIMIT, log_spaced
from gateway.settings.fields import Section, setting

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_HISTOGRAMS = ("request_duration", "input_sequence", "output_sequence", "ttft", "itl")


def _low(histogram: str, default: float, label: str) -> Any:
    return setting(f"DYN_METRICS_{histogram}_MIN", default, f"{label}: lower end of its buckets", gt=0)


def _high(histogram: str, default: float, label: str) -> Any:
    return setting(f"DYN_METRICS_{histogram}_MAX", default, f"{label}: upper end of its buckets", gt=0)


def _count(histogram: str, default: int, label: str) -> Any:
    return setting(
        f"DYN_METRICS_{histogram}_COUNT", default, f"{label}: number of buckets", ge=2, le=BUCKETS_LIMIT
    )


class Metrics(Section):
    """Metrics."""

    metrics_prefix: str = setting(
        "DYN_METRICS_PREFIX", "dynamo_frontend", "Prefix of the name of every metric"
    )
    metrics_request_duration_min: float = _low("REQUEST_DURATION", 1.0, "Request duration, seconds")
    metrics_request_duration_max: float = _high("REQUEST_DURATION", 512.0, "Request duration, seconds")
    metrics_request_duration_count: int = _count("REQUEST_DURATION", 10, "Request duration")
    metrics_input_sequence_min: float = _low("INPUT_SEQUENCE", 50.0, "Prompt length, tokens")
    metrics_input_sequence_max: float = _high("INPUT_SEQUENCE", 128000.0, "Prompt length, tokens")
    metrics_input_sequence_count: int = _count("INPUT_SEQUENCE", 12, "Prompt length")
    metrics_output_sequence_min: float = _low("OUTPUT_SEQUENCE", 50.0, "Reply length, tokens")
    metrics_output_sequence_max: float = _high("OUTPUT_SEQUENCE", 32000.0, "Reply length, tokens")
    metrics_output_sequence_count: int = _count("OUTPUT_SEQUENCE", 10, "Reply length")
    metrics_ttft_min: float = _low("TTFT", 0.001, "Time to first token, seconds")
    metrics_ttft_max: float = _high("TTFT", 480.0, "Time to first token, seconds")
    metrics_ttft_count: int = _count("TTFT", 18, "Time to first token")
    metrics_itl_min: float = _low("ITL", 0.001, "Inter-token latency, seconds")
    metrics_itl_max: float = _high("ITL", 2.0, "Inter-token latency, seconds")
    metrics_itl_count: int = _count("ITL", 13, "Inter-token latency")

    @field_validator("metrics_prefix")
    @classmethod
    def _is_metric_name(cls, prefix: str) -> str:
        if _METRIC_NAME.fullmatch(prefix) is None:
            raise ValueError("must be letters, digits, '_' and ':', and not start with a digit")
        return prefix.rstrip("_")

    @model_validator(mode="after")
    def _bounds_exist(self) -> Self:
        # Checked here and not on first use, so that bad buckets are an error at the start.
        for name in _HISTOGRAMS:
            try:
                self._bounds(name)
            except ValueError as error:
                stem = f"DYN_METRICS_{name.upper()}"
                raise ValueError(f"{stem}_MIN, {stem}_MAX: {error}") from error
        return self

    def _bounds(self, name: str) -> tuple[float, ...]:
        low, high, count = (getattr(self, f"metrics_{name}_{part}") for part in ("min", "max", "count"))
        return log_spaced(low, high, count)

    @property
    def bucket_bounds(self) -> Mapping[str, tuple[float, ...]]:
        """The bucket bounds of each histogram, by its name."""
        return {name: self._bounds(name) for name in _HISTOGRAMS}
