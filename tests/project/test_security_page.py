"""Each line of the threat model names a test. (That it exists: test_docs.py)"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
MODEL = PAGE.split("## What each attacker can reach")[1].split("## Dependencies")[0]
ROWS = [
    line for line in MODEL.splitlines() if line.startswith("| ") and not line.endswith(("- |", " test |"))
]


def test_every_line_of_the_threat_model_names_a_test() -> None:
    assert len(ROWS) > 30
    assert [row for row in ROWS if re.search(r"\| `tests/\S+` \|$", row) is None] == []
