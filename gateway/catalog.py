"""The catalog: which endpoint speaks which format, and which routes the formats declare.

Owns: the endpoints, the relayed routes, the merge of what the formats declare, and the check of all of it
before it is served. Must never enter: handling a request, reading settings, the name of a format.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from gateway.exchange import GENERATE
from gateway.formats.base import AnyFormat
from gateway.formats.contract import ANY_OF
from gateway.formats.relayed import RelayedFormat
from gateway.formats.routes import ControlCall, RelayedRoute, parse_control_call

# Only characters that a request line spells in one way: a percent sign would never match the decoded path.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@/-]*")
_METHOD = re.compile(r"[A-Z]+")
_TEMPLATE = re.compile(r"\{[^{}:]*(:path)?[^{}]*\}")


class CatalogError(ValueError):
    """The endpoints cannot be served; the message names the entry at fault.

    ``paths`` are the paths at fault, ``settings`` the names of the settings at fault.
    """

    def __init__(self, message: str, *, paths: Sequence[str] = (), settings: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.paths = paths
        self.settings = settings


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route: its path, its methods, its format, and its name in metrics.

    A segment ``*`` of ``path`` stands for any one segment, at its end for one or more.
    """

    path: str
    methods: tuple[str, ...]
    format: AnyFormat
    operation: str = GENERATE

    @property
    def is_pattern(self) -> bool:
        return "*" in self.path.split("/")

    def at(self, method: str, path: str) -> Endpoint:
        """Return the endpoint for the requests of one method and path."""
        if not isinstance(self.format, RelayedFormat):
            return self
        resource = None
        if self.is_pattern:
            resource = path.split("/")[self.path.split("/").index("*")]
        return replace(self, format=replace(self.format, method=method, path=path, resource=resource))


class EndpointEntry(NamedTuple):
    """An endpoint as the settings ask for it.

    ``path`` None and ``methods`` () mean the format's own. ``setting`` is the field that names the format.
    """

    path: str | None
    format: str
    setting: str
    methods: tuple[str, ...] = ()


class SharedCall(NamedTuple):
    """A control call, and the names of all formats that declare it."""

    call: ControlCall
    formats: tuple[str, ...]


class EngineRoutes(NamedTuple):
    """The routes that the formats declare beside their endpoints, by path; relayed routes are not among them.

    A path of ``calls`` or ``loads`` may be declared by several formats, one of ``aborts`` by one.
    """

    aborts: Mapping[str, AnyFormat]
    calls: Mapping[str, SharedCall]
    loads: Mapping[str, tuple[str, ...]]

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all these routes."""
        return (*self.aborts, *self.calls, *self.loads)


def endpoints_of(formats: Mapping[str, AnyFormat], entries: Iterable[EndpointEntry]) -> tuple[Endpoint, ...]:
    """Return the endpoints that ``entries`` ask for, not validated yet. Raises CatalogError."""
    found = []
    for entry in entries:
        format = _format(formats, entry.format, [entry.setting])
        path = format.routes.path if entry.path is None else entry.path
        if path is None:
            message = f"format {entry.format!r} has no default path; write PATH={entry.format}"
            raise CatalogError(message, settings=[entry.setting])
        found.append(Endpoint(path, entry.methods or format.routes.methods, format))
    return tuple(found)


def engine_routes(formats: Iterable[AnyFormat], added: Sequence[str] = ()) -> EngineRoutes:
    """Merge what ``formats`` declare, and the control calls ``added`` by the user for workers of all of them.

    Raises CatalogError where two declarations contradict each other.
    """
    formats = list(formats)
    aborts: dict[str, AnyFormat] = {}
    calls: dict[str, SharedCall] = {}
    loads: dict[str, tuple[str, ...]] = {}
    owners: dict[str, tuple[str, AnyFormat]] = {}
    for format in formats:
        declared = format.routes
        kinds = {path: "abort call" for path in declared.aborts}
        kinds |= {call.path: "control call" for call in declared.control}
        kinds |= dict.fromkeys(declared.loads, "load")
        for path, kind in kinds.items():
            first_kind, first = owners.setdefault(path, (kind, format))
            if kind != first_kind or (kind == "abort call" and first is not format):
                raise CatalogError(
                    f"{path!r} is declared as {first_kind} by format {first.name!r}"
                    f" and as {kind} by format {format.name!r}",
                    paths=[path],
                )
        aborts |= dict.fromkeys(declared.aborts, format)
        for call in declared.control:
            shared = calls.get(call.path, SharedCall(call, ()))
            if shared.call != call:
                raise CatalogError(
                    f"formats {', '.join(shared.formats)} and {format.name} declare the control call"
                    f" {call.path!r} differently: {shared.call} and {call}",
                    paths=[call.path],
                )
            calls[call.path] = SharedCall(call, (*shared.formats, format.name))
        for path in declared.loads:
            loads[path] = (*loads.get(path, ()), format.name)
    for text in added:
        call = parse_control_call(text)
        if call.path in owners or call.path in calls:
            raise CatalogError(f"{call.path!r} is a route already", settings=["control_path"])
        calls[call.path] = SharedCall(call, tuple(format.name for format in formats))
    return EngineRoutes(aborts, calls, loads)


def relays(
    formats: Mapping[str, AnyFormat],
    served: Iterable[Endpoint],
    *,
    added: Sequence[str] = (),
    chosen: Mapping[str, str],
    reserved: Collection[str] = (),
) -> tuple[Endpoint, ...]:
    """Return the relayed routes, those that ``formats`` declare and those ``added`` by the user.

    An added route is one of ``RelayedRoute.parse`` for the workers of all formats, or of one with ``FORMAT=``
    before it; it replaces a declared one of the same path. ``chosen`` is as in
    ``configured_formats``. A path that is already ``served`` is no relayed route; an added one is then an
    error. Raises CatalogError.
    """
    taken = {endpoint.path: endpoint for endpoint in served}
    routes: dict[str, tuple[tuple[str, ...], list[str]]] = {}
    for format in formats.values():
        for route in map(RelayedRoute.parse, format.routes.relayed):
            if route.path not in taken:
                methods, names = routes.get(route.path, ((), []))
                routes[route.path] = (tuple(dict.fromkeys(methods + route.methods)), [*names, format.name])
    for entry in added:
        name, _, text = entry.rpartition("=")
        route = RelayedRoute.parse(text)
        hosts_of = [_format(formats, name, ["relay_path"]).name] if name else list(formats)
        routes[route.path] = (route.methods, hosts_of)
    found = []
    for path, (methods, names) in routes.items():
        hosts = tuple(formats[name] for name in names)
        capabilities = ANY_OF.join(host.capability for host in hosts)
        # What is created at a path with further ones below it is referred to there.
        creates = f"{path}/*" in routes or any(path in host.routes.creating for host in hosts)
        format = _configured(RelayedFormat(path, capabilities, hosts=hosts, creates=creates), chosen)
        # As NVIDIA Dynamo names them where it has them: chat_completions, embeddings.
        operation = path.strip("/").removeprefix("v1/").replace("/", "_")
        found.append(Endpoint(path, methods, format, operation))
    validate_catalog([*taken.values(), *found], reserved)
    return tuple(found)


def configured_formats(
    formats: Mapping[str, AnyFormat], chosen: Mapping[str, str]
) -> Mapping[str, AnyFormat]:
    """Return ``formats``, each with those of the ``chosen`` settings that are options of it.

    ``chosen`` maps field names of settings to their values as text. A format without any of them is returned
    as it is. Raises CatalogError if a format refuses a value.
    """
    return MappingProxyType({name: _configured(format, chosen) for name, format in formats.items()})


def _configured(format: AnyFormat, chosen: Mapping[str, str]) -> AnyFormat:
    options = {option: chosen[setting] for setting, option in format.settings.items() if setting in chosen}
    if not options:
        return format
    try:
        return format.configured(options)
    except ValueError as error:
        raise CatalogError(f"format {format.name!r}: {error}") from error


def validate_catalog(endpoints: Iterable[Endpoint], reserved: Collection[str] = ()) -> None:
    """Raise CatalogError for a list of endpoints that cannot be served.

    ``reserved`` are other paths of the gateway. They may contain templates as FastAPI spells them
    (``/workers/{worker_id}``, ``{rest:path}``).
    """
    seen: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        if not isinstance(endpoint.format, RelayedFormat):  # RelayedRoute.parse has checked those
            _check_path(endpoint.path)
        _check_methods(endpoint)
        if (other := seen.get(endpoint.path)) is not None:
            raise CatalogError(
                f"generate path {endpoint.path!r} is given to two endpoints,"
                f" {other.format.name} and {endpoint.format.name}",
                paths=[endpoint.path],
            )
        for own in reserved:
            if template_pattern(own).fullmatch(endpoint.path):
                raise CatalogError(
                    f"generate path {endpoint.path!r} ({endpoint.format.name}) clashes with {own!r},"
                    " a path of the gateway itself",
                    paths=[endpoint.path, own],
                )
        seen[endpoint.path] = endpoint
    if not seen:
        raise CatalogError("the catalog has no endpoint")


def _format(formats: Mapping[str, AnyFormat], name: str, settings: Sequence[str] = ()) -> AnyFormat:
    try:
        return formats[name]
    except KeyError:
        installed = ", ".join(sorted(formats)) or "none"
        message = f"unknown format {name!r}; installed formats: {installed}"
        raise CatalogError(message, settings=settings) from None


def _check_path(path: str) -> None:
    if not path.startswith("/"):
        raise CatalogError(f"generate path must start with a slash: {path!r}", paths=[path])
    if any(segment.startswith((":", "*")) for segment in path.split("/")):
        message = f"a segment of a generate path must not start with ':' or '*': {path!r}"
        raise CatalogError(message, paths=[path])
    if not _PATH.fullmatch(path):
        message = f"generate path has a character that a plain path cannot have: {path!r}"
        raise CatalogError(message, paths=[path])


def _check_methods(endpoint: Endpoint) -> None:
    methods = endpoint.methods
    # A single string would pass as a sequence of its letters.
    if isinstance(methods, str) or not methods or not all(map(_METHOD.fullmatch, methods)):
        raise CatalogError(f"generate path {endpoint.path!r} needs methods in upper case: {methods!r}")


def template_pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of all paths that match a template as FastAPI spells it."""
    parts: list[str] = []
    done = 0
    for match in _TEMPLATE.finditer(path):
        parts += (re.escape(path[done : match.start()]), ".*" if match.group(1) else "[^/]+")
        done = match.end()
    return re.compile("".join((*parts, re.escape(path[done:]))))
