"""Is it alive, is it ready, how is it doing.

Owns: the answers for probes, load balancers and scrapers. Must never enter: asking a worker; every answer
comes from what is already known, so that it is instant under load.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from gateway.catalog import Endpoint
from gateway.control.replies import failure, get
from gateway.control.views import Views
from gateway.security.auth_middleware import caller_of
from gateway.security.guard import AccessScope
from gateway.settings import Settings
from gateway.version import COMPILED, NAME, VERSION

SERVICE_UNAVAILABLE = 503


class About(BaseModel):
    """What answers here, and where to read on. ``compiled``: it is the compiled build."""

    name: str
    version: str
    compiled: bool
    endpoints: list[str]
    docs: str


class Instance(BaseModel):
    """One worker, as a health report names it."""

    url: str
    state: str
    in_flight: int


class Processes(BaseModel):
    """Of the processes that ``--processes`` asks for, how many serve."""

    wanted: int
    serving: int


class Health(BaseModel):
    """``healthy`` says that the gateway runs, with or without workers. ``in_flight`` and ``draining`` are
    those of all its processes; ``processes`` is there where it has several."""

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
    """``workers`` is how many can serve the endpoint now."""

    path: str
    format: str
    workers: int


class Readiness(BaseModel):
    """``ready`` when all processes have started, some endpoint has a worker in each of them and the gateway
    is not draining."""

    status: str
    message: str
    endpoints: list[EndpointReadiness]


def open_paths(settings: Settings) -> tuple[str, ...]:
    """Paths that ask for no key: load balancers have none."""
    fixed = ("/", "/liveness", "/ready", "/readiness", "/health_generate")
    return (settings.health_path, settings.live_path, *fixed)


def reserved(settings: Settings) -> tuple[str, ...]:
    """Paths of ``system_router``."""
    return (*open_paths(settings), settings.metrics_path)


def system_router(settings: Settings, endpoints: Sequence[Endpoint], views: Views) -> APIRouter:
    """Routes for probes, scrapes and the curious."""
    system = _System(endpoints, views)
    router = APIRouter(tags=["system"])
    get(router, "/", system.about, summary="What answers here")
    summary = "Whether it takes requests, and all workers"
    get(router, settings.health_path, system.health, summary=summary, response_model_exclude_none=True)
    for path in (settings.live_path, "/liveness"):
        get(router, path, system.live, summary="Whether the process answers, draining or not")
    for path in ("/ready", "/readiness"):
        get(router, path, system.ready, summary="Whether some endpoint has a usable worker")
    get(router, "/health_generate", system.ready, summary="The same, under the name engines use")
    get(router, settings.metrics_path, system.metrics, summary="Prometheus metrics", response_class=Response)
    return router


class _System:
    """The handlers. They are ``async`` without an await because FastAPI runs all others in threads."""

    def __init__(self, endpoints: Sequence[Endpoint], views: Views) -> None:
        self._endpoints = endpoints
        self._views = views
        self._paths = [endpoint.path for endpoint in endpoints]

    async def about(self) -> About:
        return About(name=NAME, version=VERSION, compiled=COMPILED, endpoints=self._paths, docs="/docs")

    async def health(self, request: Request, response: Response) -> Health:
        elsewhere = await self._views.loads_elsewhere()
        # Where keys are asked for, the fleet is nothing for everybody to see.
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
        # Also while draining: an orchestrator that saw a failure here would kill what still runs.
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
        message = self._obstacle(endpoints)
        if message:
            response.status_code = SERVICE_UNAVAILABLE
        status = "not_ready" if message else "ready"
        return Readiness(status=status, message=message or "Service is ready", endpoints=endpoints)

    def _obstacle(self, endpoints: Sequence[EndpointReadiness]) -> str:
        if self._views.lifecycle.leaving:
            return "Service is draining"
        if self._views.aggregate is not None and not self._views.aggregate.state.settled:
            return "Not all processes serve yet"
        # One is enough: a fleet of one engine leaves the other endpoint without a worker for good.
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
