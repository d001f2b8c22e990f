"""The routes that the installed formats declare, for tests that go through all of them."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.catalog import EngineRoutes, engine_routes
from gateway.formats.registry import load_formats
from gateway.formats.routes import ControlCall, Recipients

ROUTES: EngineRoutes = engine_routes(load_formats().values())
#: Relayed path -> the formats that declare it.
RELAYED: Mapping[str, tuple[str, ...]] = {
    path: tuple(name for name, format in load_formats().items() if path in format.routes.relayed)
    for declaring in load_formats().values()
    for path in declaring.routes.relayed
}


def calls_of(kind: str, *to: Recipients) -> list[ControlCall]:
    """The control calls of the format ``kind`` that go ``to`` these."""
    return [call for call in load_formats()[kind].routes.control if call.to in to]
