"""The control plane as one FastAPI application.

Owns: the list of routers, the reply where there is no route, and the documents at /docs and /openapi.json.
Must never enter: generate requests (the gateway dispatches them before), lifespan, state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from gateway.catalog import Endpoint, EngineRoutes
from gateway.control import (
    aborts,
    engine_metrics,
    events,
    fanout,
    information,
    models,
    sessions,
    system,
    workers,
)
from gateway.control.docs_page import docs_page
from gateway.control.openapi import merge
from gateway.control.replies import failure
from gateway.control.views import Views
from gateway.settings import Settings, SettingsError
from gateway.version import NAME, VERSION

DOCS_PATH = "/docs"
OPENAPI_PATH = "/openapi.json"
#: The methods that a route may have.
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")


def reserved_paths(settings: Settings, routes: EngineRoutes) -> tuple[str, ...]:
    """Return all paths of the control plane, as FastAPI path templates; no endpoint may have one of them.

    Raise SettingsError if the settings give two routes the same path.
    """
    fixed = (DOCS_PATH, OPENAPI_PATH, *workers.PATHS, events.PATH, engine_metrics.PATH, sessions.PATH)
    paths = (*system.reserved(settings), *models.reserved(settings.models_path), *routes.paths, *fixed)
    for path, count in Counter(paths).items():
        if count > 1:
            sources = settings.sources_with([path]) or settings.source_of("control_path")
            raise SettingsError(f"{sources}: {path!r} is the path of two routes")
    return paths


def control_app(
    settings: Settings,
    endpoints: Sequence[Endpoint],
    views: Views,
    routes: EngineRoutes,
    relays: Sequence[Endpoint] = (),
) -> FastAPI:
    """Return the application with all control routes.

    ``endpoints`` and ``relays`` only appear in its OpenAPI document. Abort calls are served for the formats
    of ``endpoints`` only.
    """
    app = _ControlApp([*endpoints, *relays])
    formats = list({endpoint.format.name: endpoint.format for endpoint in endpoints}.values())
    app.include_router(system.system_router(settings, endpoints, views))
    app.include_router(models.models_router(settings.models_path, views.fleet))
    app.include_router(events.events_router(views))  # before /workers/{key}, which would match its path
    app.include_router(workers.workers_router(views))
    app.include_router(aborts.aborts_router(formats, views))
    limits = fanout.Limits(settings.body_limit, settings.control_timeout_secs or None)
    app.include_router(fanout.fanout_router(routes.calls.values(), views, limits))
    app.include_router(information.information_router(routes, views, formats))
    app.include_router(engine_metrics.engine_metrics_router(views.fleet, views.calls, formats))
    app.include_router(sessions.sessions_router())
    documents: dict[str, Any] = {"include_in_schema": False, "response_class": HTMLResponse}
    app.add_api_route(DOCS_PATH, app.page, methods=["GET", "HEAD"], **documents)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(ClientDisconnect, _client_disconnected)
    app.add_exception_handler(Exception, _internal_error)
    return app


class _ControlApp(FastAPI):
    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        super().__init__(
            title=NAME,
            version=VERSION,
            openapi_url=OPENAPI_PATH,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
        )
        self._endpoints = endpoints

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, which is made once."""
        if self.openapi_schema is None:
            self.openapi_schema = merge(super().openapi(), self._endpoints)
        return self.openapi_schema

    async def page(self) -> str:
        return docs_page(self.openapi(), OPENAPI_PATH)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for nothing else"
    path = request.url.path
    if error.status_code == 404:
        return failure(404, f"Route not found: {request.method} {path}")
    if error.status_code == 405:
        allowed = ", ".join(_methods_of(request))
        message = f"Method not allowed: {request.method} {path}; its methods are {allowed}"
        return failure(405, message, {"allow": allowed})
    return failure(error.status_code, str(error.detail), error.headers)


def _methods_of(request: Request) -> Sequence[str]:
    """Return the methods of all routes with the path of ``request``."""
    routes = request.app.routes
    return [
        method
        for method in METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]


async def _internal_error(request: Request, error: Exception) -> Response:
    # The error is also raised again, and the listener logs it.
    return failure(500, "internal error of the gateway")


async def _client_disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it: the client has disconnected
