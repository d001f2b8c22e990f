"""The page on compatibility names existing tests, for every promise and every client."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from gateway.settings import Settings
from tests.clients.libraries import AIOHTTP_KEEP_ALIVE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
PROMISES = [f"R{number}" for number in range(1, 31)]
#: Modules that are not scripts of a client.
HELPERS = {"__init__", "conftest", "libraries", "site"}


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions)


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
        assert test.startswith("test_") and test in names_in(file), each


def test_every_test_with_a_client_and_a_real_engine_is_named() -> None:
    """The page names each of them, and none that does not exist."""
    files = [f"tests/engines/test_clients_{engine}.py" for engine in ("sglang", "vllm")]
    there = {f"{file}::{name}" for file in files for name in names_in(file) if name.startswith("test_")}
    section = PAGE.partition("## Against real engines")[2].partition("## By client")[0]
    assert set(re.findall(r"`(tests/engines/\w+\.py::\w+)`", section)) == there


def test_every_client_has_its_section_with_its_tests() -> None:
    clients = {path.stem for path in Path(__file__).parent.glob("*.py")} - HELPERS
    scripts = {stem for stem in clients if not stem.startswith("test_")}
    sections = re.findall(r"`tests/clients/test_(\w+)\.py`", PAGE.partition("## By client")[2])
    assert sorted(sections) == sorted(scripts)
    assert all((Path(__file__).parent / f"test_{stem}.py").exists() for stem in scripts)


def test_idle_connections_of_clients_outlive_their_pools() -> None:
    """Otherwise a request could use a connection that the gateway is closing."""
    assert Settings().keep_alive_timeout_secs >= 75 > AIOHTTP_KEEP_ALIVE
