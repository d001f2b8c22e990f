"""The states of an exchange as a Mermaid diagram, drawn from the product's own table.

``python -m scripts.state_diagram`` writes it into docs/life-of-a-request.md; a test fails if the page has
another one.
"""

from __future__ import annotations

import re
from pathlib import Path

from gateway.exchange import ENDED, TRANSITIONS, ExchangeState

PAGE = Path(__file__).resolve().parent.parent / "docs" / "life-of-a-request.md"

_BLOCK = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)


def diagram() -> str:
    """Return the diagram as a Markdown code block, fences included."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {ExchangeState.PENDING}"]
    for state, row in TRANSITIONS.items():
        for event, following in row.items():
            if state not in ENDED:
                lines.append(f"    {state} --> {following or state}: {event}")
    lines += [f"    {state} --> [*]" for state in ExchangeState if state in ENDED]
    return "\n".join([*lines, "```", ""])


def main() -> None:
    """Replace the page's diagram."""
    PAGE.write_text(_BLOCK.sub(lambda _: diagram(), PAGE.read_text()))


if __name__ == "__main__":
    main()
