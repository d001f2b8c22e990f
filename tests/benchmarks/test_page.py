"""The measured parts of the page are replaced, and the text that people write is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.curves import Curve
from tests.benchmarks.support import report, result

TEXT = """# Performance

By hand.
<!-- bench: table -->
stale
<!-- end: table -->
""" + "".join(
    f"<!-- bench: {part} -->\n<!-- end: {part} -->\n"
    for part in ("machine", "verdicts", "generators", "growth")
)


def test_measured_parts_are_replaced_and_the_rest_kept(tmp_path: Path) -> None:
    file = tmp_path / "performance.md"
    file.write_text(TEXT)
    page.write(report(table={"unary": result()}), file)
    page.write(report(table={"unary": result(ours=77)}), file)
    text = file.read_text()
    assert "By hand." in text and "77.0" in text
    assert "stale" not in text and "50.0" not in text


def test_plot_of_each_curve_is_written_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "performance.md"
    file.write_text(TEXT)
    curve = Curve("workers", "A request", "workers", "us", [(2, 90.0), (64, 91.0)], others=True)
    page.write(report(curves={"workers": curve}), file)
    assert "](performance/workers.svg)" in file.read_text()
    assert (tmp_path / "performance" / "workers.svg").read_text().startswith("<svg")


def test_page_without_a_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="bench: bounds"):
        page.replace_part(TEXT, "bounds", "x")


def test_own_page_has_every_marker() -> None:
    text = page.PAGE.read_text()
    for part in ("machine", "verdicts", "table", "generators", "bounds", "growth"):
        assert page.replace_part(text, part, "x") != text
