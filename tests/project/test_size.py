"""Classes and functions that fit in a head, and each exception with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from scripts.import_rules import ROOT

MOST_ATTRIBUTES, MOST_LINES = 20, 70

SETTINGS, SCHEMA, RECORD = "settings", "the members of a document", "written to the log and to the metrics"
#: The classes with more attributes, by file and name.
EXCEPTIONS = {
    "cards/values.py:CardValues": SCHEMA,
    "control/workers_rows.py:WorkerEntry": SCHEMA,
    "exchange.py:ExchangeRecord": RECORD,
    "formats/sglang/request.py:BodyFields": SCHEMA,
    "formats/sglang/schema.py:GenerateRequest": SCHEMA,
    "formats/sglang/schema.py:SamplingParams": SCHEMA,
    "formats/trtllm/schema.py:CompletionRequest": SCHEMA,
    "formats/vllm/schema.py:SamplingParams": SCHEMA,
    "sim/config.py:SimConfig": SETTINGS,
    "telemetry/access_log_line.py:AccessLogLine": RECORD,
}


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement assigns to, without tuples around it."""
    if isinstance(node, ast.Assign):
        left = list(node.targets)
    else:
        left = [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []
    for target in left:
        if isinstance(target, ast.Tuple | ast.List):
            left.extend(target.elts)
        else:
            yield target


def attributes(of: ast.ClassDef) -> set[str]:
    """Return the attributes of an instance: slots, annotated members, and what its methods assign."""
    names = {
        each.target.id
        for each in of.body
        if isinstance(each, ast.AnnAssign | ast.AugAssign)
        if isinstance(each.target, ast.Name) and "ClassVar" not in ast.unparse(each)
    }
    for each in of.body:
        if any(ast.unparse(target) == "__slots__" for target in targets(each)):
            literals = {part.value for part in ast.walk(each) if isinstance(part, ast.Constant)}
            names |= {name for name in literals if isinstance(name, str)}
    assigned = [target for each in ast.walk(of) for target in targets(each)]
    return names | {
        each.attr
        for each in assigned
        if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self"
    }


def sizes(source: str) -> Iterator[tuple[str, int, int]]:
    """Yield each class and function with the number of its attributes and of its lines; 0: not counted."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield node.name, len(attributes(node)), 0
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, 0, (node.end_lineno or 0) - node.lineno + 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class A:\n  __slots__ = ('a', 'b')\n  C = 1\n  d: ClassVar[int] = 2\n  e: int", ("A", 3, 0)),
        ("class A:\n  def f(self):\n    self.a, (self.b, c) = self.a = x\n    self.d += 1", ("A", 3, 0)),
        ("class A:\n  def f(self):\n    self.a: int = 1\n    other.b = self.a.c = 1", ("A", 1, 0)),
        ("async def f():\n  a\n\n  b", ("f", 0, 4)),
    ],
)
def test_attributes_and_lines_are_counted(source: str, expected: tuple[str, int, int]) -> None:
    assert expected in sizes(source)


def test_no_class_has_more_than_20_attributes_and_no_function_more_than_70_lines() -> None:
    """Split a larger one along a concept that has a name. An exception that is not needed any more fails."""
    package = ROOT / "gateway"
    found = {
        f"{path.relative_to(package).as_posix()}:{name}": (attributes, lines)
        for path in package.rglob("*.py")
        for name, attributes, lines in sizes(path.read_text())
        if attributes > MOST_ATTRIBUTES or lines > MOST_LINES
    }
    assert {name: size for name, size in found.items() if name not in EXCEPTIONS} == {}
    assert found.keys() == EXCEPTIONS.keys()
