"""The package that docs/writing-a-format.md writes, taken out of the page."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-format.md"
_BLOCK = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def package() -> Mapping[str, str]:
    """Its files by path. A file's blocks on the page are its parts, in their order."""
    parts: defaultdict[str, list[str]] = defaultdict(list)
    for name, code in _BLOCK.findall(PAGE.read_text()):
        parts[name].append(code)
    return {name: "\n".join(codes) for name, codes in parts.items()}


def write(folder: Path) -> None:
    """Its files, below ``folder``."""
    for name, code in package().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
