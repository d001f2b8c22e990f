"""docs/architecture.md agrees with the code."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from scripts.import_rules import PACKAGES, ROOT
from scripts.package_diagram import PAGE, arrows, diagram

TEXT = PAGE.read_text()
STEPS = sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", TEXT)))
NEWCOMER_TERMS = ("disconnect", "routing policy", "header to every upstream request", "TTFT", "first request")


@cache
def names_of(file: str) -> frozenset[str]:
    """Functions and classes that ``file`` defines, methods as ``Class.method``."""
    found = set()
    for node in ast.parse((ROOT / "gateway" / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(f"{node.name}.{member.name}")
    return frozenset(found)


@pytest.mark.parametrize(("file", "name"), STEPS, ids=":".join)
def test_every_function_on_the_page_exists(file: str, name: str) -> None:
    assert name in names_of(file)


def test_every_walk_has_steps() -> None:
    for title in ("A request", "A reply", "An abort", "A registration"):
        walk = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
        assert len(re.findall(r"^\d\. ", walk, re.MULTILINE)) >= 4
        assert len(re.findall(r"`[\w/]+\.py:", walk)) >= 8


def test_diagram_has_the_arrows_of_the_import_table() -> None:
    """`python -m scripts.package_diagram` brings it up to date."""
    assert diagram() in TEXT


def test_arrow_that_a_chain_implies_is_left_out() -> None:
    assert arrows({"a": "b c.d", "b": "c", "c": ""}) == [("a", "b"), ("b", "c")]


def test_every_package_is_in_the_table() -> None:
    table = TEXT.split("| package | owns |")[1].split("\n## ")[0]
    assert set(PACKAGES) - {"__main__"} <= set(re.findall(r"`([\w]+)`", table))


@pytest.mark.parametrize("term", NEWCOMER_TERMS)
def test_questions_of_newcomers_are_answered(term: str) -> None:
    assert term in TEXT
