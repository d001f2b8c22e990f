"""Health, liveness, readiness and metrics of the gateway.

Owns: the replies to probes, load balancers and scrapers. Must never enter: a request to a worker. Every reply
is made from what the gateway already knows, so that it is fast under load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from gateway.catalog import Endpoint
from gateway.control.replies import add_get_route, failure
from gateway.control.views import Views
from gateway.security.auth_middleware import caller_of
from gateway.security.guard import AccessScope
from gateway.settings import Settings
from gateway.version import COMPILED, NAME, VERSION

SERVICE_UNAVAILABLE = 503
#: Most reasons that a readiness report lists.
REASONS = 16


class About(BaseModel):
    """The name and version of the gateway. ``compiled`` is true for the compiled build."""

    name: str
    version: str
    compiled: bool
    endpoints: list[str]
    docs: str


class Instance(BaseModel):
    """One worker in a health report."""

    url: str
    state: str
    in_flight: int


class Processes(BaseModel):
    """The number of processes that ``--processes`` asks for, and how many of them serve."""

    wanted: int
    serving: int


class Health(BaseModel):
    """The health report. ``healthy`` means that the gateway runs, with or without workers.

    ``in_flight`` and ``draining`` are those of all its processes; ``processes`` is present if there are
    several.
    """

    status: str
    stage: str
    message: str
    endpoints: list[str]
    instances: list[Instance]
    processes: Processes | None = None


class Live(BaseModel):
    status: str
    message: str


class EndpointReadiness(BaseModel):
    """One endpoint; ``workers`` is how many workers can serve it now."""

    path: str
    format: str
    workers: int


class Readiness(BaseModel):
    """The readiness report.

    ``ready`` means that all processes have started, each has a usable worker for some endpoint, and the
    gateway is not draining. ``unusable`` counts the workers that get no requests, by the reason, as this
    process knows them; at most REASONS reasons are listed, the most common ones.
    """

    status: str
    message: str
    endpoints: list[EndpointReadiness]
    unusable: dict[str, int]


def open_paths(settings: Settings) -> tuple[str, ...]:
    """Return the paths that require no key, because load balancers have none."""
    fixed = ("/", "/liveness", "/ready", "/readiness", "/health_generate")
    return (settings.health_path, settings.live_path, *fixed)


def reserved(settings: Settings) -> tuple[str, ...]:
    """Return the paths of ``system_router``."""
    return (*open_paths(settings), settings.metrics_path)


def system_router(settings: Settings, endpoints: Sequence[Endpoint], views: Views) -> APIRouter:
    """Return the router for probes, scrapes and the start page."""
    system = _System(endpoints, views)
    router = APIRouter(tags=["system"])
    add_get_route(router, "/", system.about, summary="Name, version and endpoints of the gateway")
    summary = "Health of the gateway, and all workers"
    add_get_route(
        router, settings.health_path, system.health, summary=summary, response_model_exclude_none=True
    )
    for path in (settings.live_path, "/liveness"):
        add_get_route(router, path, system.live, summary="Liveness; succeeds while draining, too")
    for path in ("/ready", "/readiness"):
        add_get_route(router, path, system.ready, summary="Readiness: an endpoint has a usable worker")
    add_get_route(
        router,
        "/health_generate",
        system.ready,
        summary="The same as /ready, under the name that engines use",
    )
    add_get_route(
        router, settings.metrics_path, system.metrics, summary="Prometheus metrics", response_class=Response
    )
    return router


class _System:
    """The handlers.

    They are ``async`` without an ``await``, because FastAPI runs functions that are not ``async`` in threads.
    """

    def __init__(self, endpoints: Sequence[Endpoint], views: Views) -> None:
        self._endpoints = endpoints
        self._views = views
        self._paths = [endpoint.path for endpoint in endpoints]

    async def about(self) -> About:
        return About(name=NAME, version=VERSION, compiled=COMPILED, endpoints=self._paths, docs="/docs")

    async def health(self, request: Request, response: Response) -> Health:
        elsewhere = await self._views.loads_elsewhere()
        # If keys are configured, only clients with a control key may see the workers.
        workers = self._views.fleet.workers if caller_of(request.scope).may(AccessScope.CONTROL) else ()
        draining = self._views.lifecycle.leaving
        if draining:
            response.status_code = SERVICE_UNAVAILABLE
        return Health(
            status="not_ready" if draining else "healthy",
            stage="draining" if draining else "serving",
            message="Service is not ready" if draining else "Service is healthy",
            endpoints=self._paths,
            instances=[
                Instance(
                    url=worker.url,
                    state=worker.state.value,
                    in_flight=worker.in_flight + elsewhere.get(worker.url, 0),
                )
                for worker in workers
            ],
            processes=self._processes(),
        )

    def _processes(self) -> Processes | None:
        aggregate = self._views.aggregate
        return (
            None
            if aggregate is None
            else Processes(wanted=aggregate.state.wanted, serving=aggregate.state.serving)
        )

    async def live(self) -> Live:
        # Also while draining: an orchestrator that saw a failure would kill the process and its running
        # requests.
        return Live(status="live", message="Service is live")

    async def ready(self, response: Response) -> Readiness:
        endpoints = [
            EndpointReadiness(
                path=endpoint.path,
                format=endpoint.format.name,
                workers=len(self._views.fleet.usable(endpoint.format.capability)),
            )
            for endpoint in self._endpoints
        ]
        message = self._not_ready_reason(endpoints)
        if message:
            response.status_code = SERVICE_UNAVAILABLE
        status = "not_ready" if message else "ready"
        return Readiness(
            status=status,
            message=message or "Service is ready",
            endpoints=endpoints,
            unusable=self._unusable(),
        )

    def _unusable(self) -> dict[str, int]:
        workers = (worker for worker in self._views.fleet.workers if not worker.usable)
        return dict(Counter(worker.reason or worker.state.value for worker in workers).most_common(REASONS))

    def _not_ready_reason(self, endpoints: Sequence[EndpointReadiness]) -> str:
        if self._views.lifecycle.leaving:
            return "Service is draining"
        if self._views.aggregate is not None and not self._views.aggregate.state.settled:
            return "Not all processes serve yet"
        # One endpoint with a worker is enough: a fleet of one engine never has a worker for the other
        # endpoint.
        if not any(endpoint.workers for endpoint in endpoints):
            return "No worker is usable"
        if self._views.aggregate is not None and not self._views.aggregate.state.usable:
            return "Not all processes have a usable worker yet"
        return ""

    async def metrics(self) -> Response:
        aggregate = self._views.aggregate
        rendered = self._views.metrics() if aggregate is None else await aggregate.metrics()
        if rendered is None:
            return failure(SERVICE_UNAVAILABLE, "The other processes of the gateway cannot be asked")
        body, content_type = rendered
        return Response(body, headers={"content-type": content_type})
