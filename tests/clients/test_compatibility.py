"""The page on compatibility names existing tests for every promise, and a script for every client."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from gateway.settings import Settings
from tests.clients import sglang, vllm  # noqa: F401 - their classes are counted
from tests.clients.libraries import AIOHTTP_KEEP_ALIVE, Framework

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
PROMISES = [f"R{number}" for number in range(1, 31)]


@cache
def names_in(file: str) -> frozenset[str]:
    """Return the names of all functions, and of all methods with the names of their classes."""
    found: set[str] = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        before = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        functions = (each for each in inner if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
        found |= {before + function.name for function in functions}
    return frozenset(found)


def rows() -> dict[str, str]:
    """Return the last column of each row."""
    found = re.findall(r"^\| (R\d+) \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE)
    assert len(found) == len(dict(found))
    return dict(found)


def test_page_has_every_promise_in_order() -> None:
    assert [*rows()] == PROMISES


@pytest.mark.parametrize("promise", PROMISES)
def test_every_promise_names_tests_that_exist(promise: str) -> None:
    named = re.findall(r"`([^`]+)`", rows()[promise])
    assert named
    for each in named:
        file, _, test = each.partition("::")
        assert "test_" in test and test in names_in(file), each


def test_every_test_with_a_real_engine_is_named() -> None:
    """The page names each of them, and none that does not exist."""
    files = ("tests/clients/contract.py", "tests/engines/test_clients.py")
    there = {f"{file}::{name}" for file in files for name in names_in(file) if "::test_" in name}
    section = PAGE.partition("## Against real engines")[2].partition("## By client")[0]
    assert set(re.findall(r"`(tests/\w+/\w+\.py::[\w:]+)`", section)) == there


def frameworks(base: type[Framework] = Framework) -> Iterator[type[Framework]]:
    for each in base.__subclasses__():
        yield each
        yield from frameworks(each)


def test_every_client_is_tested_and_has_its_section() -> None:
    section = PAGE.partition("## By client")[2]
    found = re.findall(r"((?:`\w+`(?:, | and )?)+) in `tests/clients/(\w+)\.py`", section)
    named = [(name, module) for names, module in found for name in re.findall(r"`(\w+)`", names)]
    scripts = {(each.__name__, each.__module__.rpartition(".")[2]) for each in frameworks()}
    assert sorted(named) == sorted(scripts - {("OnVllm", "vllm")})
    folder = Path(__file__).parent
    used = "".join(path.read_text() for path in (folder / "contract.py", *folder.glob("test_*.py")))
    assert all(len(re.findall(rf"\b{name}\b", used)) > 1 for name, _ in named), "imported at most"


def test_idle_connections_of_clients_outlive_their_pools() -> None:
    """Otherwise a request could use a connection that the gateway is closing."""
    assert Settings().keep_alive_timeout_secs >= 75 > AIOHTTP_KEEP_ALIVE
