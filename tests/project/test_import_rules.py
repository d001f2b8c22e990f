"""The house rules on imports and names hold for the product, and each rule can fail."""

from __future__ import annotations

import pytest

from scripts import import_rules
from scripts.import_rules import ALLOWANCES, FORMAT_HELPERS, OWNERS, PACKAGES, PURE, Allowance, Module


def texts(name: str, source: str, is_package: bool = False) -> list[str]:
    return [violation.text for violation in import_rules.check([Module(name, source, is_package)])]


def test_product_obeys_every_rule() -> None:
    """No module of the product breaks a rule."""
    modules = import_rules.read_tree()
    assert len(modules) > 20, "the tree was not found"
    assert import_rules.check(modules) == []


def test_tables_name_only_what_exists() -> None:
    """A row for a removed module would apply to its successor without a decision."""
    names = {module.name for module in import_rules.read_tree()}
    owners = {owner for packages in OWNERS.values() for owner in packages}
    helpers = {f"gateway.formats.{helper}" for helper in FORMAT_HELPERS}
    packages = {f"gateway.{name}" for row in PACKAGES.items() for name in [row[0], *row[1].split()]}
    allowed = {allowance.module for allowance in ALLOWANCES}
    assert {*PURE, *owners, *helpers, *packages, *allowed} <= names


@pytest.mark.parametrize("package", PACKAGES)
def test_row_of_a_package_lists_only_what_the_package_imports(package: str) -> None:
    """A row that allows more than is used would hide a new dependency."""
    used = [
        each.target
        for module in import_rules.read_tree()
        if f"{module.name}.".startswith(f"gateway.{package}.")
        for each in import_rules.imports_of(module)
    ]
    for item in PACKAGES[package].split():
        assert any(f"{target}.".startswith(f"gateway.{item}.") for target in used), item


def test_packages_form_no_import_cycle() -> None:
    """The packages can be put in an order in which each imports earlier ones only."""
    assert import_rules.cycle_of() == []
    assert import_rules.cycle_of({"a": "b", "b": "a", "c": "a", "d": ""}) == ["a", "b", "c"]


@pytest.mark.parametrize("package", sorted(OWNERS))
def test_owner_of_a_package_uses_it(package: str) -> None:
    """A package that none of its owners imports is a leftover."""
    used = {
        each.target.partition(".")[0]
        for module in import_rules.read_tree()
        for each in import_rules.imports_of(module)
    }
    assert package in used


@pytest.mark.parametrize("module", ["gateway.errors", "gateway.formats.sse", "gateway.routing.random"])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import time", "no clock, so no time"),
        ("from asyncio import Queue", "no asyncio.Queue"),
        ("import os.path", "no os.path"),
        ("from urllib.request import urlopen", "no urllib.request.urlopen"),
        ("import msgspec", "must not import msgspec"),
        ("def f():\n    from socket import socket", "no socket.socket"),
        ("text = open('x').read()", "must not call open()"),
        ("async def f(): ...", "nothing in it waits"),
    ],
)
def test_pure_module_with_io_is_named(module: str, source: str, message: str) -> None:
    """A pure module that reaches for I/O, a clock or a package is reported."""
    assert any(message in text for text in texts(module, source))


def test_pure_module_may_parse_urls_and_count() -> None:
    """Purity does not forbid the harmless half of the standard library."""
    assert texts("gateway.routing.random", "import random\nfrom urllib.parse import urlsplit") == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("from gateway.formats.beta import reader", "another format: gateway.formats.beta.reader"),
        ("from gateway.formats import beta", "another format: gateway.formats.beta"),
        ("from ..beta.reader import Reader", "another format: gateway.formats.beta.reader.Reader"),
        ("from gateway.proxy.handler import serve", "must not import gateway.proxy.handler.serve"),
        ("import gateway.fleet.worker", "must not import gateway.fleet.worker"),
        ("from gateway.upstream import pool", "must not import gateway.upstream.pool"),
        ("import httptools", "a format must not import httptools"),
    ],
)
def test_format_that_looks_outside_is_named(source: str, message: str) -> None:
    """A format knows the errors, the shared helpers and its own folder, nothing else."""
    assert any(message in text for text in texts("gateway.formats.alpha.upstream", source))


def test_format_may_use_helpers_and_its_own_folder() -> None:
    """The imports that a format needs are not reported."""
    source = (
        "import msgspec\nfrom pydantic import BaseModel\nfrom gateway.errors import InvalidRequest\n"
        "from gateway.formats import sse\nfrom gateway.formats.contract import Ids\nfrom . import schema\n"
        "from gateway.formats.alpha.reader import Reader\n"
    )
    assert texts("gateway.formats.alpha.upstream", source) == []


def test_helper_that_knows_a_format_is_named() -> None:
    """The helpers serve all formats and know none."""
    found = texts("gateway.formats.base", "from gateway.formats.alpha import FORMAT")
    assert found == ["must not know another format: gateway.formats.alpha.FORMAT"]


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        (
            "gateway.proxy.handler",
            "from gateway.wiring.app import create_app",
            "must not import gateway.wiring.app.create_app",
        ),
        ("gateway.telemetry.metrics", "from gateway.fleet.registry import Fleet", "must not import"),
        ("gateway.sim.scheduler", "from gateway.formats.sse import scan", "must not import"),
        ("gateway.wiring.app", "import gateway.sim.config", "must not import"),
        ("gateway.surprise", "", "belongs to no package"),
        ("gateway.upstream.pool", "import httpx", "httpx belongs to gateway.stores"),
        ("gateway.upstream.pool", "import requests", "requests has no owner"),
    ],
)
def test_import_through_a_wall_is_named(module: str, source: str, message: str) -> None:
    """A package imports what its row allows; a third-party package is imported by its owners."""
    assert any(message in text for text in texts(module, source))


@pytest.mark.parametrize("source", ["x = 'a vLLM worker'", "# as SGLang does", "def sglang_path(): ..."])
def test_engine_named_away_from_home_is_named(source: str) -> None:
    """Strings, comments and identifiers outside an engine's packages name no engine."""
    assert any("must not name an engine" in text for text in texts("gateway.proxy.handler", source))
    assert texts("gateway.formats.alpha.reader", source) == texts("gateway.sim.engine", source) == []


def test_allowance_that_is_not_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception is removed together with its cause."""
    monkeypatch.setattr(
        import_rules, "ALLOWANCES", (Allowance("gateway.proxy.handler", "old_vllm_name", "was so"),)
    )
    assert texts("gateway.proxy.handler", "old_vllm_name = 1") == []
    assert texts("gateway.proxy.handler", "") == ["needs no allowance any more: old_vllm_name"]


@pytest.mark.parametrize(
    ("name", "is_package", "statement", "target"),
    [
        ("gateway.a.b", False, "from . import c", "gateway.a.c"),
        ("gateway.a.b", False, "from ..d import e", "gateway.d.e"),
        ("gateway.a", True, "from .b import c", "gateway.a.b.c"),
        ("gateway.a", True, "from .. import d", "gateway.d"),
    ],
)
def test_relative_import_is_resolved(name: str, is_package: bool, statement: str, target: str) -> None:
    """A relative import cannot avoid a rule."""
    found = [each.target for each in import_rules.imports_of(Module(name, statement, is_package))]
    assert found == [target]
