"""The routes that the installed formats declare, for tests that go through all of them."""

from __future__ import annotations

from gateway.catalog import EngineRoutes, engine_routes
from gateway.formats.registry import load_formats
from gateway.formats.routes import ControlCall, Recipients, RelayedRoute

ROUTES: EngineRoutes = engine_routes(load_formats().values())
#: Relayed path -> the formats that declare it.
RELAYED: dict[str, tuple[str, ...]] = {}
for _format in load_formats().values():
    for _route in map(RelayedRoute.parse, _format.routes.relayed):
        RELAYED[_route.path] = (*RELAYED.get(_route.path, ()), _format.name)


def calls_of(kind: str, *to: Recipients) -> list[ControlCall]:
    """The control calls of the format ``kind`` that go ``to`` these."""
    return [call for call in load_formats()[kind].routes.control if call.to in to]
