"""The search finds the highest rate that a gateway can relay."""

from __future__ import annotations

from benchmarks.knee import Step, report, search


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
