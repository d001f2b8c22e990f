"""The report lists results, verdicts and missing targets, and is the same after it was written and read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks import report as reports
from benchmarks import verdicts
from benchmarks.bounds import Bound
from benchmarks.curves import Curve
from benchmarks.loads import Figure
from tests.benchmarks.support import report, result


def test_text_names_machine_commit_versions_verdicts_and_what_is_missing() -> None:
    missing = "smg is not on PATH (pip install smg)"
    text = reports.text(report(table={"unary": result(), "prompt": result(ours=90)}, missing=[missing]))
    assert f"**MISSING:** {missing}" in text and "**does not hold**" in text
    assert "2 cores of a processor" in text and "commit abc123" in text
    assert "| load | smg 1.13.0 | gateway |" in text
    row = next(line for line in text.splitlines() if line.startswith("| unary, 1 token, 32 connections: us"))
    assert row.split(" | ")[1:4] == ["**60.0**", "50.0", "0.83"]
    assert row.endswith("| holds |")


def test_baseline_is_compared_build_by_build() -> None:
    """A ratio over 1 means that this checkout costs more; a build that was not measured has none."""
    row = result(ours=51.5)
    found = report(table={"unary": replace(row, values={**row.values, "baseline": 50.0})})
    found.targets["baseline"] = {"version": "def456", "command": ""}
    assert "| unary, 1 token, 32 connections | 1.030 | – |" in reports.text(found)


def test_bound_says_whether_it_holds() -> None:
    bounds = {
        "a": Bound("a", "memory", 12.0, "KiB", 40),
        "b": Bound("b", "held", 3.0, "MiB", 2),
        "c": Bound("c", "exit", 0.2, "s"),
    }
    lines = reports.bounds(report(bounds=bounds)).splitlines()[2:]
    assert [line.split(" | ")[2:4] for line in lines] == [
        ["at most 40 KiB", "holds"],
        ["at most 2 MiB", "**does not hold**"],
        ["–", "–"],
    ]


def test_curve_says_its_exponent_and_whether_it_holds() -> None:
    sizes = (10.0, 100.0, 1000.0, 10_000.0)
    steep = Curve("a", "A request", "ids", "us", [(size, size**2) for size in sizes])
    rising = Curve("b", "A request", "others", "us", [(size, 10 + size) for size in sizes], others=True)
    still = Curve("c", "A request", "others", "us", [(size, 10.0) for size in sizes], others=True)
    lines = reports.curves(report(curves={"a": steep, "b": rising, "c": still})).splitlines()[2:]
    assert [line.split(" | ")[2] for line in lines] == ["2.00", "1.00", "0.00"]
    assert ["**does not hold**" in line for line in lines] == [True, True, False]


def test_report_that_was_written_reads_the_same(tmp_path: Path) -> None:
    curve = Curve("workers", "A request", "workers", "us", [[2, 90.0], [64, 91.0]], others=True)  # type: ignore[list-item]
    made = report(
        table={"unary": result()},
        bounds={"start": Bound("start", "start", 0.6, "s", 1)},
        curves={"workers": curve},
    )
    made.write(tmp_path / "found.json")
    assert reports.read(tmp_path / "found.json") == made


def test_later_run_replaces_its_rows_and_keeps_the_others() -> None:
    first = report(table={"unary": result(ours=50), "prompt": result("prompt")})
    later = report(table={"unary": result(ours=70)}, command=["make bench ARGS=..."])
    first.add(later)
    assert first.table["unary"].values["gateway"] == 70
    assert set(first.table) == {"unary", "prompt"}
    assert first.command == ["make bench", "make bench ARGS=..."]


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
