"""The measured parts of docs/reliability.md.

Owns: writing them between their markers. Must never enter: the rest of the page, which people write.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.page import replace_part

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reliability.md"


def write(part: str, content: str, page: Path = PAGE) -> None:
    """Put ``content`` between the markers of ``part``. Raises ValueError if there are none."""
    page.write_text(replace_part(page.read_text(), part, content))


def write_plot(name: str, svg: str, page: Path = PAGE) -> str:
    """Write the plot beside the page and return the link to it, as seen from the page."""
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.svg").write_text(svg)
    return f"{page.stem}/{name}.svg"
