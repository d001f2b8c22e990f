"""Every verdict is in one of the two lists."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import verdicts
from benchmarks.bounds import Bound
from benchmarks.curves import Curve
from benchmarks.loads import Figure
from tests.benchmarks.support import report, result


def test_each_verdict_is_in_its_list() -> None:
    bounds = {"a": Bound("a", "memory", 12.0, "KiB", 40), "b": Bound("b", "exit", 0.2, "s")}
    curves = {"c": Curve("c", "A request", "others", "us", [(1, 10.0), (9, 50.0)], others=True)}
    text = verdicts.lists(report(table={"unary": result(ours=90)}, bounds=bounds, curves=curves))
    bad, good = text.split("**Holds:**")
    assert "* unary, 1 token, 32 connections, pure Python: 1.50 x smg; at most 1 x the best router" in bad
    assert "* A request: 10 to 50 us, exponent" in bad
    assert "* memory: 12 KiB; at most 40" in good
    assert "exit" not in text
    assert "not hold" not in verdicts.lists(report(table={"unary": result(ours=50)})), "an empty list"


def test_burst_is_reported_in_the_unit_of_its_bound() -> None:
    burst = replace(
        result("burst"), unit=Figure.THROUGHPUT.value, values={"smg": 0.8, "gateway": 1.25}, ratio=1.56
    )
    assert "pure Python: 1.25 x direct; " in verdicts.lists(report(table={"burst": burst}))
