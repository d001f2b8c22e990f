"""The package that docs/writing-a-format.md contains."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-format.md"
_BLOCK = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def package() -> Mapping[str, str]:
    """Return its files by path; a file is the blocks with its name, in order."""
    parts: defaultdict[str, list[str]] = defaultdict(list)
    for name, code in _BLOCK.findall(PAGE.read_text()):
        parts[name].append(code)
    return {name: "\n".join(codes) for name, codes in parts.items()}


def write(folder: Path) -> None:
    """Write its files below ``folder``."""
    for name, code in package().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
