"""Plugins are found by entry points; one that breaks the contract is a start-up error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest

from gateway.formats import registry
from gateway.formats.base import BaseFormat
from gateway.formats.registry import GROUP, FormatError, load_formats
from gateway.formats.routes import ControlCall, Recipients, Routes
from gateway.formats.vllm import FORMAT, VllmFormat
from gateway.formats.worker_contract import ProbeRequest

METHODS = "parse project upstream abort reader render identify".split()
ATTRIBUTES = "name capability probes health".split()
OPTIONAL = (
    "configured read_health read_load load_alternative aborted_ids abort_relayed openapi parse_in_steps"
    " without_body join check_vocabulary"
).split()


def renamed(name: str = "other") -> Any:
    return type("Renamed", (VllmFormat,), {"name": name})()


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., EntryPoint]]:
    """Return a function that makes an entry point of a value, in a new module."""
    made = 0

    def make(value: Any, name: str = "plugin") -> EntryPoint:
        nonlocal made
        made += 1
        module = ModuleType(f"format_plugin_{made}")
        module.__dict__["FORMAT"] = value
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return EntryPoint(name, f"{module.__name__}:FORMAT", GROUP)

    yield make


def without(name: str) -> Any:
    members = {key: getattr(VllmFormat, key) for key in METHODS + ATTRIBUTES if key != name}
    return type("Partial", (BaseFormat,), members)()


def replaced(name: str, value: Any) -> Any:
    return type("Changed", (VllmFormat,), {name: value})()


def test_own_formats_are_found_by_the_same_entry_points() -> None:
    """They are plugins like any other, in the order of names."""
    formats = load_formats()
    assert list(formats) == sorted(formats)
    assert {"sglang", "vllm"} <= formats.keys()
    assert formats["vllm"] is FORMAT
    with pytest.raises(TypeError):
        formats["x"] = FORMAT  # type: ignore[index]


def test_good_plugin_is_loaded_under_its_own_name(plugin: Callable[..., EntryPoint]) -> None:
    assert list(load_formats([plugin(renamed(), "whatever"), plugin(FORMAT)])) == ["other", "vllm"]


def test_every_member_is_checked() -> None:
    assert registry.REQUIRED.keys() == {*METHODS, *ATTRIBUTES}
    assert registry.OPTIONAL.keys() == set(OPTIONAL)


@pytest.mark.parametrize("member", METHODS + ATTRIBUTES)
def test_missing_member_is_named(member: str, plugin: Callable[..., EntryPoint]) -> None:
    with pytest.raises(FormatError, match=rf"plugin mine = \S+:FORMAT: {member} is missing"):
        load_formats([plugin(without(member), "mine")])


@pytest.mark.parametrize("member", METHODS + OPTIONAL)
@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda self, other: None, "takes"),
        (lambda self, a, b, c, d, e: None, r"takes \(a, b, c, d, e\) instead of"),
        (lambda self, *args, **kwargs: None, "takes"),
        (7, "is not a method"),
        (None, "is not a method"),
    ],
)
def test_wrong_signature_is_named(
    member: str, method: Any, message: str, plugin: Callable[..., EntryPoint]
) -> None:
    with pytest.raises(FormatError, match=rf"FORMAT: {member} {message}"):
        load_formats([plugin(replaced(member, method))])


async def _async_parse(self: Any, body: bytes, headers: Any) -> None: ...


def _keyword_parse(self: Any, body: bytes, *, headers: Any) -> None: ...


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("capability", ""),
        ("probes", ()),
        ("probes", (ProbeRequest("GET", "/a"), "/b")),
        ("probes", (ProbeRequest("GET", "a"),)),
        ("health", None),
        ("health", ProbeRequest("GET", "")),
        ("loads", None),
        ("routes", None),
        ("routes", Routes(path="a")),
        ("routes", Routes(aborts=("/a",), loads=("/a",))),
        ("routes", Routes(control=(ControlCall("/a", to=Recipients.ANY),))),
        ("routes", Routes(control=(ControlCall("/a", pauses="sleep"),))),
        ("settings", {"vocab_size": 7}),
        ("enabled_by", True),
        ("card_defaults", {"structural_tag": None}),
    ],
)
def test_bad_attribute_is_named(member: str, value: Any, plugin: Callable[..., EntryPoint]) -> None:
    with pytest.raises(FormatError, match=rf"FORMAT: {member} "):
        load_formats([plugin(replaced(member, value))])


def _broken_property(self: Any) -> str:
    raise ValueError("not today")


NOT_DERIVED = "plugin plugin = .* is not derived from .*BaseFormat"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, NOT_DERIVED),
        (object(), NOT_DERIVED),
        (VllmFormat, "is a class"),
        *(
            (replaced("name", name), "FORMAT: name ")
            for name in ["", "Vllm", "1a", "a b", "a\n", "é", None, 7]
        ),
        (replaced("parse", _async_parse), "parse is async"),
        (replaced("parse", _keyword_parse), "by position and by name"),
        (replaced("parse", int), "parse"),
        (
            replaced("capability", property(_broken_property)),
            "capability cannot be read: ValueError: not today",
        ),
        (
            replaced("aborted_ids", BaseFormat.aborted_ids),
            "FORMAT: aborted_ids is missing, though routes declares abort",
        ),
    ],
)
def test_value_that_is_no_good_format_is_refused_by_name(
    value: Any, message: str, plugin: Callable[..., EntryPoint]
) -> None:
    """An entry point may name any object, and reading a member of it may run code."""
    with pytest.raises(FormatError, match=message):
        load_formats([plugin(value)])


def test_two_of_one_name_are_refused(plugin: Callable[..., EntryPoint]) -> None:
    with pytest.raises(FormatError, match=r"'other' is installed twice: a = \S+ and b = \S+"):
        load_formats([plugin(renamed(), "a"), plugin(renamed(), "b")])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "ModuleNotFoundError"),
        ("other = 1", "AttributeError"),
        ("1/0", "ZeroDivisionError"),
        ("def", "SyntaxError"),
        ("raise RuntimeError('no licence')", "no licence"),
    ],
)
def test_plugin_that_is_not_there_or_breaks_at_import_is_named(
    source: str | None, message: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry point may outlive its module."""
    if source is not None:
        (tmp_path / "broken_format_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_format_plugin", raising=False)
    value = "broken_format_plugin:F"
    with pytest.raises(FormatError, match=f"plugin broken = {value}: cannot be imported: .*{message}"):
        load_formats([EntryPoint("broken", value, GROUP)])
