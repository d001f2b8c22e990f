"""Figures, ratios and verdicts follow from the samples."""

from __future__ import annotations

import pytest

from benchmarks.bench import Sample
from benchmarks.generators import LoadResult
from benchmarks.loads import ROWS, Row
from benchmarks.table import DOES_NOT, HOLDS, UNKNOWN, Result, result_of


def row(name: str) -> Row:
    return next(each for each in ROWS if each.name == name)


def sample(target: str, *, cpu: float = 0.0, p50: float = 1.0, events: float = 0.0) -> Sample:
    seen = LoadResult(
        replies=1000, events=10_000, replies_per_s=1000, events_per_s=events, p50_ms=p50, client_cpu=0.2
    )
    return Sample(target, seen, cpu, 0.0, 0.5, "wrk")


def unary(ours: float, **peers: float) -> Result:
    """Return the unary row, with the microseconds of a request for each target."""
    costs = {"gateway": ours, **peers}
    samples = [sample("direct"), *(sample(name, cpu=us / 1000) for name, us in costs.items())]
    return result_of(row("unary"), [{each.target: each for each in samples}])


def test_gateway_that_costs_less_than_the_best_router_holds() -> None:
    found = unary(50, smg=80, vllm=60)
    assert (found.best, found.verdict) == ("vllm", HOLDS)
    assert found.ratio == pytest.approx(50 / 60)


def test_gateway_that_costs_more_than_the_best_router_does_not_hold() -> None:
    found = unary(70, smg=80, vllm=60)
    assert (found.best, found.verdict) == ("vllm", DOES_NOT)
    assert found.ratio == pytest.approx(70 / 60)


def test_floor_is_no_router_to_be_compared_with() -> None:
    found = unary(50, haproxy=18, smg=80)
    assert found.best == "smg"
    assert found.values["haproxy"] == pytest.approx(18)


def test_without_a_router_there_is_no_verdict() -> None:
    found = unary(50, haproxy=18)
    assert (found.best, found.ratio, found.verdict) == (None, None, UNKNOWN)


def test_long_prompt_has_to_cost_a_quarter() -> None:
    def verdict(ours: float) -> str:
        rounds = [{name: sample(name, cpu=cpu) for name, cpu in (("gateway", ours), ("smg", 0.4))}]
        return result_of(row("prompt"), rounds).verdict

    assert (verdict(0.1), verdict(0.11)) == (HOLDS, DOES_NOT)


def test_figure_is_the_median_of_the_rounds() -> None:
    """One round on a busy machine does not decide."""
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


def test_every_row_has_a_name_of_its_own() -> None:
    assert len({each.name for each in ROWS}) == len(ROWS) == 7


def test_compiled_gateway_is_no_router_to_be_compared_with() -> None:
    found = unary(50, smg=80, **{"gateway-compiled": 25})
    assert found.best == "smg"
    assert found.values["gateway-compiled"] == pytest.approx(25)
