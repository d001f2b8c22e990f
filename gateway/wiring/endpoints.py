"""The catalog of one gateway, built from its settings.

Owns: building the catalog from the settings, and naming the setting at fault where they contradict each
other. Must never enter: handling a request, the construction of anything else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gateway import catalog as catalogs
from gateway.catalog import CatalogError, Endpoint, EndpointEntry, EngineRoutes
from gateway.control.app import reserved_paths
from gateway.formats.base import AnyFormat
from gateway.formats.registry import load_formats
from gateway.settings import Settings

#: The field of ``--endpoint``.
ENDPOINT = "endpoint"
#: Methods of the path whose format DYN_GENERATE_FORMAT names, whatever the format: those of NVIDIA Dynamo.
_GENERATE_METHODS = ("POST", "PUT")


class Served(NamedTuple):
    """The catalog of one gateway.

    ``formats`` are those whose workers are recognised, by name: those of the endpoints, and those whose
    endpoints are switched off. ``generate`` are the endpoints, ``relays`` the relayed routes, ``routes`` what
    else the installed formats declare.
    """

    formats: Mapping[str, AnyFormat]
    generate: Sequence[Endpoint]
    relays: Sequence[Endpoint]
    routes: EngineRoutes


def serving(settings: Settings, catalog: Sequence[Endpoint] | None) -> Served:
    """Return what ``settings`` ask to serve.

    ``catalog`` replaces the endpoints of the settings. Raises CatalogError, FormatError and SettingsError.
    """
    formats = catalogs.configured_formats(load_formats(), settings.format_options)
    _check_workers(settings, formats)
    asked = [] if catalog is not None else _entries(settings)
    off = {name: format for name, format in formats.items() if not _is_on(settings, format)}
    entries = [entry for entry in asked if entry.format not in off]
    try:
        if asked and not entries:
            switches = [str(format.enabled_by) for format in off.values()]
            raise CatalogError("no generate endpoint is left", settings=switches)
        generate = catalogs.endpoints_of(formats, entries) if catalog is None else catalog
        routes = catalogs.engine_routes(
            {**formats, **{endpoint.format.name: endpoint.format for endpoint in generate}}.values(),
            settings.control_path,
        )
        reserved = reserved_paths(settings, routes)
        catalogs.validate_catalog(generate, reserved)
    except CatalogError as error:
        raise _named(settings, formats, entries, error) from error
    try:
        relays = catalogs.relays(
            formats, generate, added=settings.relay_path, chosen=settings.format_options, reserved=reserved
        )
    except CatalogError as error:
        raise CatalogError(f"{settings.source_of('relay_path')}: {error}") from error
    _check_timed_paths(settings, [endpoint.path for endpoint in (*generate, *relays)])
    recognised = {endpoint.format.name: endpoint.format for endpoint in generate}
    return Served({**off, **recognised} if asked else recognised, generate, relays, routes)


def _is_on(settings: Settings, format: AnyFormat) -> bool:
    """Return True unless a setting switches off the endpoints of ``format``."""
    return format.enabled_by is None or settings.generate_switches.get(format.enabled_by, True)


def _entries(settings: Settings) -> Sequence[EndpointEntry]:
    generate = EndpointEntry(
        settings.generate_path, settings.generate_format, "generate_format", _GENERATE_METHODS
    )
    fixed = [EndpointEntry(path, format, "format_paths") for format, path in settings.format_paths.items()]
    added = [EndpointEntry(path, format, ENDPOINT) for path, format in settings.endpoints]
    return [generate, *fixed, *added]


def _named(
    settings: Settings,
    formats: Mapping[str, AnyFormat],
    entries: Sequence[EndpointEntry],
    error: CatalogError,
) -> CatalogError:
    """Return ``error`` with the settings at fault in front of its message."""
    fields = [name for name in error.settings if name in type(settings).model_fields]
    for entry in entries:
        path = entry.path or (formats[entry.format].routes.path if entry.format in formats else None)
        if entry.setting == ENDPOINT and path in error.paths and ENDPOINT not in fields:
            fields.append(ENDPOINT)
    sources = [settings.source_of(name) for name in fields]
    if error.paths and (others := settings.sources_with(error.paths)):
        sources.append(others)
    return CatalogError(f"{', '.join(sources)}: {error}" if sources else str(error))


def _check_workers(settings: Settings, formats: Mapping[str, AnyFormat]) -> None:
    for entry in settings.workers:
        if entry.format is not None and entry.format not in formats:
            source, installed = settings.source_of("worker"), ", ".join(formats)
            raise CatalogError(
                f"{source}: worker {entry.url}: unknown format {entry.format!r}; installed: {installed}"
            )


def _check_timed_paths(settings: Settings, served: Collection[str]) -> None:
    for name, paths in settings.timed_paths().items():
        for path in paths:
            if path not in served:
                raise CatalogError(f"{settings.source_of(name)}: {path!r} is no inference route")
