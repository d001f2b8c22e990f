"""The house rules on imports and names hold for the product, and each rule can fail."""

from __future__ import annotations

import pytest

from scripts import import_rules
from scripts.import_rules import ALLOWANCES, FORMAT_HELPERS, OWNERS, PACKAGES, PURE, Allowance, Module

HANDLER, FORMAT, PURE_MODULE = (
    "gateway.proxy.handler",
    "gateway.formats.alpha.upstream",
    "gateway.routing.random",
)


def texts(name: str, source: str, is_package: bool = False) -> list[str]:
    return [violation.text for violation in import_rules.check([Module(name, source, is_package)])]


def test_product_obeys_every_rule() -> None:
    modules = import_rules.read_tree()
    assert len(modules) > 20, "the tree was not found"
    assert import_rules.check(modules) == []


def test_tables_name_only_what_exists_and_is_used() -> None:
    """A row for a removed module would apply to its successor; one that allows more than is used would hide
    a new dependency."""
    modules = import_rules.read_tree()
    used = {module.name: [each.target for each in import_rules.imports_of(module)] for module in modules}
    owners = {owner for packages in OWNERS.values() for owner in packages}
    helpers = {f"gateway.formats.{helper}" for helper in FORMAT_HELPERS}
    packages = {f"gateway.{name}" for row in PACKAGES.items() for name in [row[0], *row[1].split()]}
    assert {*PURE, *owners, *helpers, *packages, *(each.module for each in ALLOWANCES)} <= used.keys()
    assert OWNERS.keys() <= {target.partition(".")[0] for targets in used.values() for target in targets}
    for package, row in PACKAGES.items():
        inside = [name for name in used if f"{name}.".startswith(f"gateway.{package}.")]
        targets = [f"{target}." for name in inside for target in used[name]]
        unused = [item for item in row.split() if not any(t.startswith(f"gateway.{item}.") for t in targets)]
        assert (package, unused) == (package, [])


def test_packages_form_no_import_cycle() -> None:
    assert import_rules.cycle_of() == []
    assert import_rules.cycle_of({"a": "b", "b": "a", "c": "a", "d": ""}) == ["a", "b", "c"]


@pytest.mark.parametrize("module", ["gateway.errors", "gateway.formats.sse", PURE_MODULE])
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
    assert any(message in text for text in texts(module, source))


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        (FORMAT, "from gateway.formats.beta import reader", "another format: gateway.formats.beta.reader"),
        (FORMAT, "from gateway.formats import beta", "another format: gateway.formats.beta"),
        (FORMAT, "from ..beta.reader import Reader", "another format: gateway.formats.beta.reader.Reader"),
        (FORMAT, "from gateway.proxy.handler import serve", "must not import gateway.proxy.handler.serve"),
        (FORMAT, "import gateway.fleet.worker", "must not import gateway.fleet.worker"),
        (FORMAT, "from gateway.upstream import pool", "must not import gateway.upstream.pool"),
        (FORMAT, "import httptools", "a format must not import httptools"),
        ("gateway.formats.base", "from gateway.formats.alpha import FORMAT", "must not know another format"),
        (
            HANDLER,
            "from gateway.wiring.app import create_app",
            "must not import gateway.wiring.app.create_app",
        ),
        ("gateway.telemetry.metrics", "from gateway.fleet.registry import Fleet", "must not import"),
        ("gateway.sim.scheduler", "from gateway.formats.sse import scan", "must not import"),
        ("gateway.wiring.app", "import gateway.sim.config", "must not import"),
        ("gateway.surprise", "", "belongs to no package"),
        ("gateway.upstream.pool", "import httpx", "httpx belongs to gateway.stores"),
        ("gateway.upstream.pool", "import requests", "requests has no owner"),
        (HANDLER, "x = 'a vLLM worker'", "must not name an engine"),
        (HANDLER, "# as SGLang does", "must not name an engine"),
        (HANDLER, "def sglang_path(): ...", "must not name an engine"),
    ],
)
def test_import_through_a_wall_and_engine_away_from_home_are_named(
    module: str, source: str, message: str
) -> None:
    """A format knows its own folder and helpers that know no format. A package imports what its row allows;
    a third-party package is imported by its owners."""
    assert any(message in text for text in texts(module, source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (PURE_MODULE, "import random\nfrom urllib.parse import urlsplit"),
        (FORMAT, "import msgspec\nfrom pydantic import BaseModel\nfrom gateway.errors import InvalidRequest"),
        (FORMAT, "from gateway.formats import sse\nfrom gateway.formats.contract import Ids"),
        (FORMAT, "from . import schema\nfrom gateway.formats.alpha.reader import Reader"),
        (FORMAT, "x = 'a vLLM worker'  # as SGLang does"),
        ("gateway.sim.engine", "def sglang_path(): ..."),
    ],
)
def test_harmless_module_is_not_reported(module: str, source: str) -> None:
    assert texts(module, source) == []


def test_allowance_that_is_not_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_rules, "ALLOWANCES", (Allowance(HANDLER, "old_vllm_name", "was so"),))
    assert texts(HANDLER, "old_vllm_name = 1") == []
    assert texts(HANDLER, "") == ["needs no allowance any more: old_vllm_name"]


@pytest.mark.parametrize(
    ("name", "is_package", "statement", "target"),
    [
        ("gateway.a.b", False, "from . import c", "gateway.a.c"),
        ("gateway.a.b", False, "from ..d import e", "gateway.d.e"),
        ("gateway.a", True, "from .b import c", "gateway.a.b.c"),
        ("gateway.a", True, "from .. import d", "gateway.d"),
    ],
)
def test_relative_import_cannot_avoid_a_rule(
    name: str, is_package: bool, statement: str, target: str
) -> None:
    found = [each.target for each in import_rules.imports_of(Module(name, statement, is_package))]
    assert found == [target]
