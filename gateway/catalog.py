"""Which endpoint speaks which format.

Owns: the default list of endpoints, the other inference routes, the abort paths of each dialect, and the
check of any list before it serves. Must never enter: handling a request, reading settings. With
``gateway.engine_routes`` the one module outside the format folders that may know formats by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gateway.engine_routes import RELAY_PATHS
from gateway.exchange import GENERATE
from gateway.formats.base import AnyFormat
from gateway.formats.contract import ANY_OF
from gateway.formats.relayed import NAME as RELAYED
from gateway.formats.relayed import RelayedFormat

#: Format name -> paths where the clients of that dialect send their aborts.
ABORT_PATHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sglang": ("/abort_request",),
        "vllm": ("/inference/v1/abort_requests", "/abort_requests"),
    }
)

#: Format name -> its own options (Format.configured), by the setting that gives each its value.
FORMAT_OPTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "sglang": {
            "sglang_stream_mode": "stream_mode",
            "passthrough_engine_errors": "passthrough_engine_errors",
            "vocab_size": "vocab_size",
            "event_limit_mb": "event_limit",
        },
        "vllm": {
            "passthrough_engine_errors": "passthrough_engine_errors",
            "vocab_size": "vocab_size",
            "event_limit_mb": "event_limit",
        },
        RELAYED: {
            "passthrough_engine_errors": "passthrough_engine_errors",
            "event_limit_mb": "event_limit",
        },
    }
)

# Only what a request line spells one way: a percent sign, say, would never match the decoded path.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@/-]*")
_METHOD = re.compile(r"[A-Z]+")
_TEMPLATE = re.compile(r"\{[^{}:]*(:path)?[^{}]*\}")


class CatalogError(ValueError):
    """The list of endpoints cannot be served; the message says which entry and why.

    ``paths`` are those at fault, ``settings`` the names of settings at fault where it is not by a path.
    """

    def __init__(self, message: str, *, paths: Sequence[str] = (), settings: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.paths = paths
        self.settings = settings


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route: an exact path, the methods it answers, the format it speaks, and metrics' word for it."""

    path: str
    methods: tuple[str, ...]
    format: AnyFormat
    operation: str = GENERATE


def default_catalog(
    formats: Mapping[str, AnyFormat],
    *,
    generate_format: str,
    sglang_path: str,
    vllm_path: str,
    reserved: Collection[str] = (),
) -> tuple[Endpoint, ...]:
    """The endpoints served unless a host brings its own list.

    ``sglang_path`` speaks the format called ``generate_format``, ``vllm_path`` always vllm.
    ``reserved`` are the gateway's own paths. Raises CatalogError.
    """
    endpoints = (
        Endpoint(sglang_path, ("POST", "PUT"), _format(formats, generate_format, ["generate_format"])),
        Endpoint(vllm_path, ("POST",), _format(formats, "vllm")),
    )
    validate_catalog(endpoints, reserved)
    return endpoints


def relays(
    formats: Mapping[str, AnyFormat],
    served: Iterable[Endpoint],
    *,
    added: Sequence[str] = (),
    chosen: Mapping[str, str],
    reserved: Collection[str] = (),
) -> tuple[Endpoint, ...]:
    """The inference routes that are passed on, beside the endpoints that are ``served``.

    ``added`` are more of them, as ``PATH`` for the workers of all formats or ``FORMAT=PATH``; ``chosen`` is
    as in ``configured_formats``. A generate endpoint takes its path from the list, but not one of ``added``.
    Raises CatalogError.
    """
    taken = {endpoint.path: endpoint for endpoint in served}
    paths = {path: of for path, of in RELAY_PATHS.items() if path not in taken}
    for entry in added:
        name, _, path = entry.rpartition("=")
        paths[path] = (_format(formats, name, ["relay_path"]).name,) if name else tuple(formats)
    found = []
    for path, of in paths.items():
        served_by = [formats[name] for name in of if name in formats]
        if served_by:
            capabilities = ANY_OF.join(format.capability for format in served_by)
            format = _configured(RelayedFormat(path, capabilities, hosts=tuple(served_by)), chosen)
            # As Dynamo calls them where it has them: chat_completions, embeddings.
            operation = path.strip("/").removeprefix("v1/").replace("/", "_")
            found.append(Endpoint(path, ("POST",), format, operation))
    validate_catalog([*taken.values(), *found], reserved)
    return tuple(found)


def configured_formats(
    formats: Mapping[str, AnyFormat], chosen: Mapping[str, str]
) -> Mapping[str, AnyFormat]:
    """``formats``, each with those of the ``chosen`` settings (by name, as text) that are options of it.

    A format without any is left as it is. Raises CatalogError where a format refuses a value.
    """
    return MappingProxyType({name: _configured(format, chosen) for name, format in formats.items()})


def _configured(format: AnyFormat, chosen: Mapping[str, str]) -> AnyFormat:
    known = FORMAT_OPTIONS.get(format.name, {})
    options = {option: chosen[setting] for setting, option in known.items() if setting in chosen}
    if not options:
        return format
    try:
        return format.configured(options)
    except ValueError as error:
        raise CatalogError(f"format {format.name!r}: {error}") from error


def validate_catalog(endpoints: Iterable[Endpoint], reserved: Collection[str] = ()) -> None:
    """Refuse a list of endpoints that cannot be served. Raises CatalogError.

    ``reserved`` may hold templates (``/workers/{worker_id}``, ``{rest:path}``), as FastAPI spells them.
    """
    seen: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        _check_path(endpoint.path)
        _check_methods(endpoint)
        if (other := seen.get(endpoint.path)) is not None:
            raise CatalogError(
                f"generate path {endpoint.path!r} is given to two endpoints,"
                f" {other.format.name} and {endpoint.format.name}",
                paths=[endpoint.path],
            )
        for own in reserved:
            if _template_pattern(own).fullmatch(endpoint.path):
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
        message = f"generate path holds a character that a plain path cannot: {path!r}"
        raise CatalogError(message, paths=[path])


def _check_methods(endpoint: Endpoint) -> None:
    methods = endpoint.methods
    # A lone string would pass as a sequence of its letters.
    if isinstance(methods, str) or not methods or not all(map(_METHOD.fullmatch, methods)):
        raise CatalogError(f"generate path {endpoint.path!r} needs methods in upper case: {methods!r}")


def _template_pattern(path: str) -> re.Pattern[str]:
    parts: list[str] = []
    done = 0
    for match in _TEMPLATE.finditer(path):
        parts += (re.escape(path[done : match.start()]), ".*" if match.group(1) else "[^/]+")
        done = match.end()
    return re.compile("".join((*parts, re.escape(path[done:]))))
