"""The measured parts of docs/performance.md, and its plots.

Owns: writing them between their markers. Must never enter: the rest of the page, which people write.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import report as reports
from benchmarks import svg, verdicts
from benchmarks.fit import fit
from benchmarks.report import Report
from benchmarks.table import DOES_NOT, HOLDS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"


def write(report: Report, page: Path = PAGE) -> None:
    """Write the results of ``report`` into the page and keep the rest. Raises ValueError without a marker."""
    text = page.read_text()
    for part, content in _parts(report, page).items():
        text = replace_part(text, part, content)
    page.write_text(text)
    folder = page.with_suffix("")
    for name in report.curves:
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.svg").write_text(drawn(report, name))


def _parts(report: Report, page: Path) -> dict[str, str]:
    parts = {"verdicts": verdicts.lists(report)}
    machine = "\n\n".join([reports.machine_line(report), *reports.notices(report), _commands(report)])
    if report.table:
        parts |= {
            "machine": machine,
            "table": reports.table(report),
            "generators": reports.generators(report),
        }
    if report.bounds:
        parts["bounds"] = reports.bounds(report)
    if report.curves:
        images = [f"![{each.title}]({page.stem}/{name}.svg)" for name, each in report.curves.items()]
        parts["growth"] = "\n\n".join([reports.curves(report), *images])
    return parts


def _commands(report: Report) -> str:
    return "\n".join(["```sh", *report.command, "```"])


def replace_part(text: str, part: str, content: str) -> str:
    """Return ``text`` with ``content`` between the markers of ``part``. Raises ValueError without markers."""
    start, end = f"<!-- bench: {part} -->", f"<!-- end: {part} -->"
    before, found, rest = text.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no {start} ... {end}")
    return f"{before}{start}\n\n{content}\n\n{end}{after}"


def drawn(report: Report, name: str) -> str:
    """Return the plot of one curve."""
    curve = report.curves[name]
    fitted = fit(curve.points)
    verdict = HOLDS if curve.holds else DOES_NOT
    text = f"exponent {fitted.exponent:.2f} (dashed: the fit), {verdict}"
    return svg.drawn(svg.Plot(curve.title, text, curve.note, curve.x, curve.y, curve.points, fitted.at))
