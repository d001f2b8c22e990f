"""The pages for developers agree with the code: docs/architecture.md and docs/life-of-a-request.md."""

from __future__ import annotations

import ast
import dataclasses
import re

from gateway import errors
from gateway.cards.values import CardValues
from gateway.errors import GatewayError
from gateway.exchange import ENDED, TRANSITIONS
from gateway.fleet.card import CardSource
from scripts import package_diagram, state_diagram
from scripts.import_rules import PACKAGES, ROOT

ARCHITECTURE = package_diagram.PAGE.read_text()
LIFE = state_diagram.PAGE.read_text()


def names_of(file: str) -> set[str]:
    """Functions and classes that ``file`` defines, methods as ``Class.method``."""
    found = set()
    for node in ast.parse((ROOT / "gateway" / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_every_function_in_the_walks_exists_and_every_walk_has_steps() -> None:
    steps = set(re.findall(r"`([\w/]+\.py):([\w.]+)`", ARCHITECTURE))
    assert [f"{file}:{name}" for file, name in steps if name not in names_of(file)] == []
    for title in ("A request", "A reply", "An abort", "A registration"):
        walk = ARCHITECTURE.split(f"\n## {title}\n")[1].split("\n## ")[0]
        assert len(re.findall(r"^\d\. ", walk, re.MULTILINE)) >= 4
        assert len(re.findall(r"`[\w/]+\.py:", walk)) >= 8


def test_packages_are_in_the_table_and_in_the_diagram() -> None:
    """`python -m scripts.package_diagram` brings the diagram up to date; it leaves out implied arrows."""
    assert package_diagram.diagram() in ARCHITECTURE
    assert package_diagram.arrows({"a": "b c.d", "b": "c", "c": ""}) == [("a", "b"), ("b", "c")]
    table = ARCHITECTURE.split("| package | owns |")[1].split("\n## ")[0]
    assert set(PACKAGES) - {"__main__"} <= set(re.findall(r"`([\w]+)`", table))


def test_every_member_of_a_card_has_its_row_in_its_table() -> None:
    page = (ROOT / "docs" / "worker-cards.md").read_text()
    table = page.partition("\n## Members\n")[2].partition("\n## ")[0]
    cells = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert all(len(row) == 4 and all(row) for row in cells)
    documented = [name for row in cells for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(documented) == sorted(each.name for each in dataclasses.fields(CardValues))
    assert all(f"`{source}`" in page for source in CardSource)


def test_headings_are_the_phases_in_the_comments_of_the_handler_which_stays_short() -> None:
    source = (ROOT / "gateway" / "proxy" / "handler.py").read_text()
    comments = re.findall(r"^\s*# (\d.*)$", source, re.MULTILINE)
    phases = [" ".join(phase) for comment in comments for phase in re.findall(r"(\d),? ([a-z]+)", comment)]
    assert len(phases) == 9 and source.count("\n") < 250
    assert [*phases, "States"] == re.findall(r"^## (.+)$", LIFE, re.MULTILINE)


def test_every_failure_of_an_exchange_is_on_the_page_with_its_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    statuses = {kind.code: str(kind.status) for kind in kinds if issubclass(kind, GatewayError)}
    shown = set(re.findall(r"`([a-z_]+)`\s+\((\d{3})\)", LIFE))
    assert shown == {
        (code, statuses[code]) for code in statuses.keys() - {"method_not_allowed", "process_died"}
    }


def test_diagram_is_the_table_of_transitions_without_late_cancellations() -> None:
    """`python -m scripts.state_diagram` brings the page up to date."""
    shown = state_diagram.diagram()
    assert shown in LIFE and LIFE.count("```mermaid") == 1
    assert set(re.findall(r"^    (\w+) --> (\w+): (\w+)$", shown, re.MULTILINE)) == {
        (state, following or state, event)
        for state, row in TRANSITIONS.items()
        for event, following in row.items()
        if state not in ENDED
    }
