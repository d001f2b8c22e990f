"""Figures, ratios and verdicts follow from the samples."""

from __future__ import annotations

import pytest

from benchmarks.bench import Sample
from benchmarks.generators import LoadResult
from benchmarks.loads import ROWS, Row
from benchmarks.table import DOES_NOT, HOLDS, UNKNOWN, result_of


def row(name: str) -> Row:
    return next(each for each in ROWS if each.name == name)


def sample(target: str, *, cpu: float = 0.0, p50: float = 1.0, events: float = 0.0) -> Sample:
    seen = LoadResult(
        replies=1000, events=10_000, replies_per_s=1000, events_per_s=events, p50_ms=p50, client_cpu=0.2
    )
    return Sample(target, seen, cpu, 0.0, 0.5, "wrk")


@pytest.mark.parametrize(
    ("costs", "best", "verdict"),
    [
        ({"gateway": 50, "smg": 80, "vllm": 60}, "vllm", HOLDS),
        ({"gateway": 70, "smg": 80, "vllm": 60}, "vllm", DOES_NOT),
        # The floor and another build of ours are measured, but are no routers to be compared with.
        ({"gateway": 50, "haproxy": 18, "smg": 80, "gateway-compiled": 25}, "smg", HOLDS),
        ({"gateway": 50, "haproxy": 18}, None, UNKNOWN),
    ],
)
def test_gateway_holds_if_it_costs_less_than_the_best_router(
    costs: dict[str, float], best: str | None, verdict: str
) -> None:
    """``costs`` are the microseconds of a request for each target."""
    samples = [sample("direct"), *(sample(name, cpu=us / 1000) for name, us in costs.items())]
    found = result_of(row("unary"), [{each.target: each for each in samples}])
    assert (found.best, found.verdict) == (best, verdict)
    assert found.ratio == (best and pytest.approx(costs["gateway"] / costs[best]))
    assert found.values == pytest.approx(costs)


@pytest.mark.parametrize(("ours", "verdict"), [(0.1, HOLDS), (0.11, DOES_NOT)])
def test_long_prompt_has_to_cost_a_quarter(ours: float, verdict: str) -> None:
    costs = {"gateway": ours, "smg": 0.4}
    found = result_of(row("prompt"), [{name: sample(name, cpu=cpu) for name, cpu in costs.items()}])
    assert found.verdict == verdict


def test_figure_is_the_median_of_the_rounds() -> None:
    rounds = [{"gateway": sample("gateway", cpu=cpu)} for cpu in (0.05, 0.9, 0.06)]
    assert result_of(row("unary"), rounds).values["gateway"] == pytest.approx(60)


def test_added_latency_is_without_the_workers_own_of_that_round() -> None:
    rounds = [
        {name: sample(name, p50=p50) for name, p50 in (("direct", slow), ("gateway", slow + 0.1))}
        for slow in (0.05, 0.5, 0.06)
    ]
    assert result_of(row("latency"), rounds).values == {"gateway": pytest.approx(0.1)}


@pytest.mark.parametrize(("ours", "verdict"), [(120.0, HOLDS), (90.0, DOES_NOT)])
def test_burst_is_held_against_direct(ours: float, verdict: str) -> None:
    rates = (("direct", 100.0), ("smg", 80.0), ("sgl", 110.0), ("gateway", ours))
    found = result_of(row("burst"), [{name: sample(name, events=rate) for name, rate in rates}])
    assert found.best == "sgl"
    assert found.values["gateway"] == pytest.approx(ours / 100)
    assert found.verdict == verdict


def test_errors_are_listed_by_target() -> None:
    bad = sample("gateway", cpu=0.1)
    bad.seen.errors = 3
    found = result_of(row("unary"), [{"direct": sample("direct"), "gateway": bad}] * 2)
    assert found.errors == {"gateway": 6}
