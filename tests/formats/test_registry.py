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
from gateway.formats.registry import GROUP, FormatError, check_format, load_formats
from gateway.formats.routes import ControlCall, Recipients, Routes
from gateway.formats.vllm import FORMAT, VllmFormat
from gateway.formats.worker_contract import ProbeRequest

METHODS = "parse project upstream abort reader render identify".split()
ATTRIBUTES = "name capability probes health".split()
OPTIONAL = (
    "configured read_health read_load load_alternative aborted_ids abort_relayed openapi parse_in_steps"
    " without_body join"
).split()


def renamed(name: str = "other") -> Any:
    """A good format under another name."""
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
    """A format that lacks one member."""
    members = {key: getattr(VllmFormat, key) for key in METHODS + ATTRIBUTES if key != name}
    return type("Partial", (BaseFormat,), members)()


def replaced(name: str, value: Any) -> Any:
    """A format with one member replaced."""
    return type("Changed", (VllmFormat,), {name: value})()


def test_own_formats_are_found_by_the_same_entry_points() -> None:
    """They are plugins like any other, in the order of names."""
    formats = load_formats()
    assert list(formats) == sorted(formats)
    assert {"sglang", "vllm"} <= formats.keys()
    assert formats["vllm"] is FORMAT


def test_result_cannot_be_changed() -> None:
    """The mapping is read-only."""
    with pytest.raises(TypeError):
        load_formats()["x"] = FORMAT  # type: ignore[index]


def test_good_plugin_is_loaded_under_its_own_name(plugin: Callable[..., EntryPoint]) -> None:
    """The format's name is used, not the entry point's."""
    assert list(load_formats([plugin(renamed(), "whatever"), plugin(FORMAT)])) == ["other", "vllm"]


def test_every_member_is_checked() -> None:
    """The lists of this module name all members."""
    assert registry.REQUIRED.keys() == {*METHODS, *ATTRIBUTES}
    assert registry.OPTIONAL.keys() == set(OPTIONAL)


@pytest.mark.parametrize("member", METHODS + ATTRIBUTES)
def test_missing_member_is_named(member: str, plugin: Callable[..., EntryPoint]) -> None:
    """The message names the plugin and the member."""
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
    """Names and number of parameters are those of the protocol."""
    with pytest.raises(FormatError, match=rf"FORMAT: {member} {message}"):
        load_formats([plugin(replaced(member, method))])


async def _async_parse(self: Any, body: bytes, headers: Any) -> None: ...


def _keyword_parse(self: Any, body: bytes, *, headers: Any) -> None: ...


@pytest.mark.parametrize(
    ("method", "message"),
    [(_async_parse, "parse is async"), (_keyword_parse, "by position and by name"), (int, "parse")],
)
def test_method_that_cannot_be_called_as_the_handler_does_is_named(
    method: Any, message: str, plugin: Callable[..., EntryPoint]
) -> None:
    """Async methods and keyword-only parameters pass a check of names only."""
    with pytest.raises(FormatError, match=message):
        load_formats([plugin(replaced("parse", method))])


@pytest.mark.parametrize("name", ["", "Vllm", "1a", "a b", "a\n", "é", None, 7])
def test_bad_name_is_refused(name: Any, plugin: Callable[..., EntryPoint]) -> None:
    """A name is a metric label and a setting's value."""
    with pytest.raises(FormatError, match="FORMAT: name "):
        load_formats([plugin(replaced("name", name))])


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("capability", ""),
        ("capability", None),
        ("probes", ()),
        ("probes", None),
        ("probes", "GET /"),
        ("probes", (ProbeRequest("GET", "/a"), "/b")),
        ("probes", (ProbeRequest("GET", "a"),)),
        ("health", None),
        ("health", ProbeRequest("GET", "")),
        ("loads", None),
        ("loads", (ProbeRequest("GET", "a"),)),
        ("routes", None),
        ("routes", Routes(path="a")),
        ("routes", Routes(aborts=("/a",), loads=("/a",))),
        ("routes", Routes(control=(ControlCall("/a", to=Recipients.ANY),))),
        ("routes", Routes(control=(ControlCall("/a", pauses="sleep"),))),
        ("settings", {"vocab_size": 7}),
        ("settings", None),
    ],
)
def test_bad_attribute_is_named(member: str, value: Any, plugin: Callable[..., EntryPoint]) -> None:
    """Probes, routes and settings are validated at start-up."""
    with pytest.raises(FormatError, match=rf"FORMAT: {member} "):
        load_formats([plugin(replaced(member, value))])


def test_abort_routes_need_the_reading_of_abort_calls(plugin: Callable[..., EntryPoint]) -> None:
    """Otherwise every abort call would be refused."""
    with pytest.raises(FormatError, match="FORMAT: aborted_ids is missing, though routes declares abort"):
        load_formats([plugin(replaced("aborted_ids", BaseFormat.aborted_ids))])


def test_class_in_place_of_an_instance_is_refused(plugin: Callable[..., EntryPoint]) -> None:
    """A common mistake, named as such."""
    with pytest.raises(FormatError, match="is a class"):
        load_formats([plugin(VllmFormat)])


@pytest.mark.parametrize("value", [None, 7, "vllm", object()])
def test_anything_else_is_refused(value: Any, plugin: Callable[..., EntryPoint]) -> None:
    """An entry point may name any object."""
    with pytest.raises(FormatError, match="plugin plugin = .* is not derived from .*BaseFormat"):
        load_formats([plugin(value)])


def test_two_of_one_name_are_refused(plugin: Callable[..., EntryPoint]) -> None:
    """The message names both plugins."""
    with pytest.raises(FormatError, match=r"'other' is installed twice: a = \S+ and b = \S+"):
        load_formats([plugin(renamed(), "a"), plugin(renamed(), "b")])


@pytest.mark.parametrize(
    ("value", "message"),
    [("no_such_module_at_all:FORMAT", "ModuleNotFoundError"), ("json:FORMAT", "AttributeError")],
)
def test_plugin_that_is_not_there_is_named(value: str, message: str) -> None:
    """An entry point may outlive its module."""
    with pytest.raises(FormatError, match=f"plugin gone = {value}: cannot be imported: {message}"):
        load_formats([EntryPoint("gone", value, GROUP)])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1/0", "ZeroDivisionError"),
        ("def", "SyntaxError"),
        ("import no_such_module_at_all", "ModuleNotFoundError"),
        ("raise RuntimeError('no licence')", "no licence"),
        ("assert False", "AssertionError"),
        ("undefined", "NameError"),
        ("open('/no/such/file')", "FileNotFoundError"),
    ],
)
def test_plugin_that_breaks_at_import_is_named(
    source: str, message: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the plugin at fault."""
    (tmp_path / "broken_format_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_format_plugin", raising=False)
    with pytest.raises(FormatError, match=f"plugin broken = broken_format_plugin:F: .*{message}"):
        load_formats([EntryPoint("broken", "broken_format_plugin:F", GROUP)])


def test_property_that_breaks_is_named(plugin: Callable[..., EntryPoint]) -> None:
    """Reading a member may run code."""

    def broken(self: Any) -> str:
        raise ValueError("not today")

    with pytest.raises(FormatError, match="capability cannot be read: ValueError: not today"):
        load_formats([plugin(replaced("capability", property(broken)))])


def test_check_returns_the_format_itself() -> None:
    """It is not wrapped."""
    assert check_format(FORMAT, "x") is FORMAT
