"""The registry of installed formats, and the start-up check that each keeps the contract.

Owns: the entry-point group and the check of a plugin against the contract. Must never enter: the name of any
dialect, which endpoint a format serves, I/O beyond importing the plugins.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from types import MappingProxyType
from typing import Any

from gateway.cards.values import CardValues
from gateway.formats.base import AnyFormat, BaseFormat
from gateway.formats.contract import Format
from gateway.formats.optional import JoinsStreams, ReleasesBody, Stepwise
from gateway.formats.routes import PAUSES, Recipients, Routes
from gateway.formats.worker_contract import ProbeRequest, WorkerContract

#: Entry points of this group name one format instance each; the gateway's own are found the same way.
GROUP = "gateway.formats"

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
#: What every plugin defines itself: a method by its declaration, an attribute by None.
REQUIRED: Mapping[str, Any] = {
    name: vars(protocol).get(name)
    for protocol in (Format, WorkerContract)
    for name in (*protocol.__annotations__, *vars(protocol))
    if not name.startswith("_")
}
#: Methods that have a default, or that a plugin may do without.
OPTIONAL: Mapping[str, Any] = {
    name: member
    for declaring in (BaseFormat, Stepwise, ReleasesBody, JoinsStreams)
    for name, member in vars(declaring).items()
    if inspect.isfunction(member) and not name.startswith("_")
}
# Exceptions that importing a plugin or reading its properties may raise.
_PLUGIN_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


class FormatError(Exception):
    """A plugin cannot be used; the message names it and the member at fault."""


def load_formats(entry_points: Iterable[metadata.EntryPoint] | None = None) -> Mapping[str, AnyFormat]:
    """Return every installed format by its name, in the order of names.

    ``entry_points`` replaces the installed ones of ``GROUP``. Raises FormatError for a plugin that cannot be
    imported, breaks the contract, or has the name of another.
    """
    if entry_points is None:
        entry_points = metadata.entry_points(group=GROUP)
    found: dict[str, tuple[str, AnyFormat]] = {}
    for entry_point in entry_points:
        plugin = f"{entry_point.name} = {entry_point.value}"
        loaded = check_format(_import(entry_point, plugin), plugin)
        if loaded.name in found:
            raise FormatError(
                f"format {loaded.name!r} is installed twice: {found[loaded.name][0]} and {plugin}"
            )
        found[loaded.name] = (plugin, loaded)
    return MappingProxyType({name: found[name][1] for name in sorted(found)})


def check_format(candidate: Any, plugin: str) -> AnyFormat:
    """Return ``candidate`` once it is known to keep the contract.

    Raises FormatError, whose message names ``plugin`` and the member at fault.
    """
    if isinstance(candidate, type):
        raise FormatError(f"format plugin {plugin}: is a class; the entry point must name an instance")
    if not isinstance(candidate, BaseFormat):
        raise FormatError(f"format plugin {plugin}: is not derived from gateway.formats.base.BaseFormat")
    if (fault := _members_fault(candidate, plugin)) is not None:
        raise FormatError(f"format plugin {plugin}: {fault}")
    return candidate


def _members_fault(candidate: AnyFormat, plugin: str) -> str | None:
    kind = type(candidate)
    for name, declared in REQUIRED.items():
        # A method that a plugin leaves out is found in the protocol itself.
        if getattr(kind, name, None) is declared and name not in vars(candidate):
            return f"{name} is missing"
    for name, check in _ATTRIBUTE_CHECKS.items():
        if (fault := check(_member(candidate, name, plugin))) is not None:
            return f"{name} {fault}"
    if candidate.routes.aborts and kind.aborted_ids is BaseFormat.aborted_ids:
        return "aborted_ids is missing, though routes declares abort calls"
    for name, declared in {**REQUIRED, **OPTIONAL}.items():
        if declared is None or not (hasattr(kind, name) or name in vars(candidate)):
            continue  # an attribute, checked above, or a method that the plugin does without
        if (fault := _signature_fault(_member(candidate, name, plugin), declared)) is not None:
            return f"{name} {fault}"
    return None


def _import(entry_point: metadata.EntryPoint, plugin: str) -> Any:
    try:
        return entry_point.load()
    except _PLUGIN_FAILURES as error:
        raise FormatError(
            f"format plugin {plugin}: cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _member(candidate: Any, name: str, plugin: str) -> Any:
    try:
        return getattr(candidate, name)
    except _PLUGIN_FAILURES as error:
        raise FormatError(
            f"format plugin {plugin}: {name} cannot be read: {type(error).__name__}: {error}"
        ) from error


def _signature_fault(method: Any, declared: Callable[..., Any]) -> str | None:
    if not callable(method):
        return "is not a method"
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        return "is async; a format decides and does no I/O"
    wanted = list(inspect.signature(declared).parameters)[1:]
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return "has no signature that can be read"
    given = [parameter.name for parameter in parameters]
    if given != wanted:
        return f"takes ({', '.join(given)}) instead of ({', '.join(wanted)})"
    if any(parameter.kind is not parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        return "has a parameter that cannot be given both by position and by name"
    return None


def _name_fault(value: Any) -> str | None:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return None
    return f"{value!r} is not of the form {_NAME.pattern}"


def _capability_fault(value: Any) -> str | None:
    return None if isinstance(value, str) and value else f"{value!r} is not a word"


def _probe_fault(value: Any) -> str | None:
    if not isinstance(value, ProbeRequest):
        return f"{value!r} is not a ProbeRequest"
    if not value.target.startswith("/"):
        return f"has the target {value.target!r}, which does not start with a slash"
    return None


def _probes_fault(value: Any) -> str | None:
    return _loads_fault(value) if value else "is not a sequence of one ProbeRequest or more"


def _loads_fault(value: Any) -> str | None:
    if not isinstance(value, Sequence):
        return "is not a sequence of ProbeRequests"
    return next((fault for probe in value if (fault := _probe_fault(probe)) is not None), None)


def _routes_fault(value: Any) -> str | None:
    if not isinstance(value, Routes):
        return f"{value!r} is not a Routes"
    try:
        paths = [*value.fixed_paths(), *([] if value.path is None else [value.path])]
    except (TypeError, ValueError) as error:
        return f"declares a relayed route that cannot be read: {error}"
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/"):
            return f"declares the path {path!r}, which does not start with a slash"
        if paths.count(path) > 1:
            return f"declares the path {path!r} twice"
    for call in value.control:
        if call.to is Recipients.ANY and call.methods != ("GET",):
            return f"declares {call.path!r} for any worker, which is for GET only"
        if (kind := call.pauses or call.resumes) not in (None, *PAUSES):
            return f"declares the pause {kind!r} of {call.path!r}, which is none of {', '.join(PAUSES)}"
    return None


def _settings_fault(value: Any) -> str | None:
    names = [*value, *value.values()] if isinstance(value, Mapping) else [None]
    return None if all(isinstance(name, str) for name in names) else "is not a mapping of names to names"


def _enabled_by_fault(value: Any) -> str | None:
    return None if value is None or isinstance(value, str) else f"{value!r} is not the name of a setting"


def _card_fault(value: Any) -> str | None:
    return None if isinstance(value, CardValues) else f"{value!r} is not a CardValues"


def _metrics_fault(value: Any) -> str | None:
    if isinstance(value, str) and value.startswith("/"):
        return None
    return f"{value!r} is not a path that starts with a slash"


_ATTRIBUTE_CHECKS: Mapping[str, Callable[[Any], str | None]] = {
    "name": _name_fault,
    "capability": _capability_fault,
    "probes": _probes_fault,
    "health": _probe_fault,
    "details": _loads_fault,
    "loads": _loads_fault,
    "metrics": _metrics_fault,
    "routes": _routes_fault,
    "settings": _settings_fault,
    "enabled_by": _enabled_by_fault,
    "card_defaults": _card_fault,
}
