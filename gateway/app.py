"""The composition root: every part is made here and given what it needs.

Owns: which part is wired to which, and the switch that sends generate routes to their handler before FastAPI
sees them. Must never enter: behaviour of a part.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from fastapi import FastAPI

from gateway import catalog as catalogs
from gateway.aborts import Aborter, Running
from gateway.catalog import CatalogError, Endpoint
from gateway.control.app import control_app, reserved_paths
from gateway.control.views import Views
from gateway.downstream import (
    AsgiClient,
    Client,
    Receive,
    Scope,
    Send,
    lifespan,
)
from gateway.errors import MethodNotAllowed
from gateway.fleet.health import Health
from gateway.fleet.probe import probe_client
from gateway.fleet.registry import Fleet
from gateway.fleet.worker import Address, Worker
from gateway.formats.base import AnyFormat
from gateway.formats.registry import load_formats
from gateway.handler import GenerateHandler
from gateway.inflight import InFlight
from gateway.lifecycle import Lifecycle
from gateway.listener.pace import Pace
from gateway.multi.member import Member
from gateway.multi.siblings import Siblings
from gateway.poison import Shield
from gateway.routing.policy import POLICIES
from gateway.run import Services
from gateway.settings import Settings
from gateway.tasks import Tasks
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.metrics import Metrics
from gateway.transport.names import Names
from gateway.turns import Turns

#: Seconds that aborts still under way get at the end of the process.
ABORT_GRACE = 1.0


class Background:
    """What runs beside the exchanges: probes, the loop's lag, aborts under way, the access log."""

    def __init__(self, services: Services, member: Member | None) -> None:
        self._services = services
        self._member = member
        self._tasks = Tasks()

    async def start(self) -> None:
        """Begin to watch every worker; returns at once, whatever the workers do, unless this replaces a
        process of several."""
        services = self._services
        for worker in services.fleet.workers:
            services.health.watch(worker)
        self._tasks.spawn(services.metrics.watch_loop(), "event loop delay")
        if self._member is not None:
            await self._member.start()
            await self._member.meet(services.fleet)

    async def stop(self) -> None:
        """End all of it; aborts under way get a moment to be heard."""
        services = self._services
        await services.aborter.close(ABORT_GRACE)
        await services.health.stop()
        await self._tasks.stop()
        services.fleet.close()
        services.access_log.close()
        if self._member is not None:
            await self._member.stop()


class Gateway:
    """The ASGI application. ``lifecycle`` and ``fleet`` are for the process around it and for tests,
    ``pace`` for our own listener."""

    def __init__(
        self,
        endpoints: Mapping[str, tuple[Endpoint, GenerateHandler]],
        control: FastAPI,
        services: Services,
        background: Background,
    ) -> None:
        self._endpoints = endpoints
        self._direct = {
            (path.encode(), method.encode()): handler.begin
            for path, (endpoint, handler) in endpoints.items()
            for method in endpoint.methods
        }
        self._control = control
        self._background = background
        self.pace = Pace()
        self.lifecycle = services.lifecycle
        self.fleet = services.fleet

    def direct_of(self, path: bytes, method: bytes) -> Callable[[Client], None] | None:
        """For our own listener: what starts such an exchange without ASGI; None: the application itself."""
        return self._direct.get((path, method))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            found = self._endpoints.get(scope["path"])
            if found is None:
                return await self._control(scope, receive, send)
            endpoint, handler = found
            if scope["method"] in endpoint.methods:
                return await handler(scope, receive, send)
            return await _refuse_method(endpoint, AsgiClient(scope, receive, send))
        if scope["type"] == "lifespan":
            return await lifespan(receive, send, self._background)
        raise RuntimeError(f"unsupported scope {scope['type']!r}")


async def _refuse_method(endpoint: Endpoint, client: Client) -> None:
    methods = ", ".join(endpoint.methods)
    error = MethodNotAllowed(f"the methods of {endpoint.path} are {methods}")
    reply = endpoint.format.render(error)
    await client.reply(reply.status, [*reply.headers, (b"allow", methods.encode())], reply.body)


def create_app(
    settings: Settings,
    *,
    catalog: Sequence[Endpoint] | None = None,
    siblings: Siblings | None = None,
    lock: AbstractContextManager[object] | None = None,
) -> Gateway:
    """A gateway for ``settings``; may be called any number of times in a process.

    ``catalog`` replaces the default list of endpoints. ``siblings`` are the other processes where this is one
    of several, and ``lock`` is held while one of them writes to standard output. Raises CatalogError and
    FormatError.
    """
    formats = catalogs.configured_formats(load_formats(), settings.format_options)
    for entry in settings.workers:
        if entry.format is not None and entry.format not in formats:
            installed = ", ".join(formats)
            source = settings.source_of("worker")
            raise CatalogError(
                f"{source}: worker {entry.url}: unknown format {entry.format!r}; installed: {installed}"
            )
    reserved = reserved_paths(settings)
    if catalog is None:
        catalog = _default_catalog(settings, formats, reserved)
    else:
        catalogs.validate_catalog(catalog, reserved)
    services = _services(settings, [endpoint.format for endpoint in catalog], siblings, lock)
    member = None if siblings is None else _member(siblings, services, catalog)
    views = _views(services, member)
    control = control_app(settings, catalog, views)
    handlers = {
        endpoint.path: (endpoint, GenerateHandler(endpoint.path, endpoint.format, services))
        for endpoint in catalog
    }
    return Gateway(handlers, control, services, Background(services, member))


def _member(siblings: Siblings, services: Services, catalog: Sequence[Endpoint]) -> Member:
    formats = {endpoint.format.name: endpoint.format for endpoint in catalog}
    return Member(siblings, services.metrics, services.lifecycle, services.aborter, formats)


def _views(services: Services, member: Member | None) -> Views:
    fleet, lifecycle, metrics = services.fleet, services.lifecycle, services.metrics.render
    if member is None:
        return Views(fleet, lifecycle, services.aborter, metrics)
    return Views(fleet, lifecycle, member.aborter, metrics, member.whole)


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


def _services(
    settings: Settings,
    formats: Sequence[AnyFormat],
    siblings: Siblings | None,
    lock: AbstractContextManager[object] | None,
) -> Services:
    shield = Shield(settings.poison_window_seconds)
    names = Names()
    fleet = Fleet(
        POLICIES[settings.router_mode](random.Random()),
        settings.connect_timeout_secs,
        died=lambda life: shield.died(life, time.monotonic()),
        names=names,
    )
    for entry in settings.workers:
        address, authorization = Address.parse(entry.url), settings.worker_authorization
        fleet.add(Worker(address, only=entry.format, authorization=authorization))
    in_flight: InFlight[Running] = InFlight(shared=siblings is not None)
    access_log = AccessLog(enabled=settings.access_log, shape=settings.access_log_format, lock=lock)
    interval = settings.sse_keep_alive_interval_ms
    return Services(
        fleet=fleet,
        health=Health(fleet, formats, probe_client(names=names), settings.probe_interval_secs),
        in_flight=in_flight,
        aborter=Aborter(in_flight),
        lifecycle=Lifecycle(),
        turns=Turns(),
        shield=shield,
        metrics=Metrics(
            settings.metrics_prefix,
            settings.buckets,
            workers=lambda: fleet.workers,
            dropped_lines=lambda: access_log.dropped,
            supervisor=None if siblings is None else siblings.supervisor,
        ),
        access_log=access_log,
        body_limit=settings.body_limit,
        keep_alive=None if interval is None else interval / 1000,
    )
