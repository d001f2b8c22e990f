"""The packages of the gateway as a Mermaid diagram, drawn from the import table.

``python -m scripts.package_diagram`` writes it into docs/architecture.md; a test fails if the page has
another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from scripts.import_rules import PACKAGES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"

_BLOCK = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)


def arrows(table: Mapping[str, str] = PACKAGES) -> list[tuple[str, str]]:
    """Return (package, imported package) for each import that no chain of other imports implies."""
    imports = {name: {item.partition(".")[0] for item in row.split()} for name, row in table.items()}

    def reachable(name: str) -> set[str]:
        return imports[name].union(*map(reachable, imports[name]))

    return [
        (name, imported)
        for name in table
        for imported in sorted(imports[name])
        if not any(imported in reachable(other) for other in imports[name] - {imported})
    ]


def diagram() -> str:
    """Return the diagram as a Markdown code block, fences included."""
    lines = [f"    {name} --> {imported}" for name, imported in arrows()]
    return "\n".join(["```mermaid", "graph TD", *lines, "```", ""])


def main() -> None:
    """Replace the diagram of the page."""
    PAGE.write_text(_BLOCK.sub(lambda _: diagram(), PAGE.read_text()))


if __name__ == "__main__":
    main()
