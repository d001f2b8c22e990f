"""What the settings have served: the formats, and the endpoints that speak them.

Owns: putting the catalog and the settings together, and saying which setting is at fault where they do not go
together. Must never enter: handling a request, the making of anything else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gateway import catalog as catalogs
from gateway.catalog import CatalogError, Endpoint
from gateway.formats.base import AnyFormat
from gateway.formats.registry import load_formats
from gateway.settings import Settings


class Served(NamedTuple):
    """``formats`` by name, ``generate`` the endpoints whose requests are read, ``relays`` those of the other
    inference routes."""

    formats: Mapping[str, AnyFormat]
    generate: Sequence[Endpoint]
    relays: Sequence[Endpoint]


def serving(settings: Settings, reserved: Sequence[str], catalog: Sequence[Endpoint] | None) -> Served:
    """What ``settings`` have served, on other paths than the ``reserved`` ones.

    ``catalog`` replaces the default list of endpoints. Raises CatalogError and FormatError.
    """
    formats = catalogs.configured_formats(load_formats(), settings.format_options)
    _check_workers(settings, formats)
    if catalog is None:
        catalog = _default_catalog(settings, formats, reserved)
    else:
        catalogs.validate_catalog(catalog, reserved)
    relays = _relays(settings, formats, catalog, reserved)
    _check_timed_paths(settings, [endpoint.path for endpoint in (*catalog, *relays)])
    return Served(formats, catalog, relays)


def _check_workers(settings: Settings, formats: Mapping[str, AnyFormat]) -> None:
    for entry in settings.workers:
        if entry.format is not None and entry.format not in formats:
            source, installed = settings.source_of("worker"), ", ".join(formats)
            raise CatalogError(
                f"{source}: worker {entry.url}: unknown format {entry.format!r}; installed: {installed}"
            )


def _default_catalog(
    settings: Settings, formats: Mapping[str, AnyFormat], reserved: Sequence[str]
) -> Sequence[Endpoint]:
    try:
        return catalogs.default_catalog(
            formats,
            generate_format=settings.generate_format,
            sglang_path=settings.sglang_generate_path,
            vllm_path=settings.vllm_generate_path,
            reserved=reserved,
        )
    except CatalogError as error:
        named = [settings.source_of(name) for name in error.settings]
        if error.paths:
            named.append(settings.sources_with(error.paths))
        raise CatalogError(f"{', '.join(named)}: {error}" if named else str(error)) from error


def _relays(
    settings: Settings, formats: Mapping[str, AnyFormat], catalog: Sequence[Endpoint], reserved: Sequence[str]
) -> Sequence[Endpoint]:
    try:
        return catalogs.relays(
            formats, catalog, added=settings.relay_path, chosen=settings.format_options, reserved=reserved
        )
    except CatalogError as error:
        raise CatalogError(f"{settings.source_of('relay_path')}: {error}") from error


def _check_timed_paths(settings: Settings, served: Collection[str]) -> None:
    for name, paths in settings.timed_paths().items():
        for path in paths:
            if path not in served:
                raise CatalogError(f"{settings.source_of(name)}: {path!r} is no inference route")
