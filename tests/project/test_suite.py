"""Rules for the tests themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
#: A plugin as its author has it, with tests of its own.
SAMPLE = "tests.plugins"


def imports_of_test_modules(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            is_test = any(part.startswith("test_") for part in name.split(".")[1:])
            if name.startswith("tests.") and is_test and not name.startswith(SAMPLE):
                yield name


def test_nothing_imports_from_a_test_module() -> None:
    """Helpers are in tests/support or in the support.py of a folder."""
    assert list(imports_of_test_modules("from tests.a import test_b")) == ["tests.a.test_b"]
    found = {
        f"{path.relative_to(TESTS)}: {name}"
        for path in TESTS.rglob("*.py")
        for name in imports_of_test_modules(path.read_text())
    }
    assert found == set()
