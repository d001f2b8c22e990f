"""The composition root: every part is made here and given what it needs.

Owns: which part is wired to which, and the switch that sends generate routes to their handler before FastAPI
sees them. Must never enter: behaviour of a part.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from gateway import catalog as catalogs
from gateway.aborts import Aborter, Running
from gateway.catalog import ABORT_PATHS, CatalogError, Endpoint
from gateway.control import engine_metrics, information, sessions, system
from gateway.control.app import DOCS_PATH, OPENAPI_PATH, control_app, reserved_paths
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
from gateway.fleet.allow import UrlPattern
from gateway.fleet.health import Health
from gateway.fleet.marks import Marks
from gateway.fleet.members import Members
from gateway.fleet.pauses import Pauses
from gateway.fleet.queue import Queue
from gateway.fleet.record import WorkerRecord
from gateway.fleet.registrar import Registrar
from gateway.fleet.registry import Fleet
from gateway.fleet.sharing import Sharing
from gateway.fleet.sync import follow
from gateway.formats.base import AnyFormat
from gateway.formats.registry import load_formats
from gateway.handler import GenerateHandler
from gateway.inflight import InFlight
from gateway.lifecycle import Lifecycle
from gateway.listener.limits import ClientLimits
from gateway.listener.pace import Pace
from gateway.multi.member import Member
from gateway.multi.siblings import Siblings
from gateway.poison import Shield
from gateway.routing.homes import Homes
from gateway.routing.policy import POLICIES
from gateway.run import Services
from gateway.security.configured import Sources, guard_of, sources_of
from gateway.security.door import Application, Door
from gateway.security.guard import Guard
from gateway.security.realms import Realms
from gateway.security.stamps import Refreshable, keep_fresh
from gateway.security.tls import Renewed, worker_tls
from gateway.settings import Settings
from gateway.stores.base import Store
from gateway.stores.registry import STORES
from gateway.tasks import Tasks
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.exposition import Now
from gateway.telemetry.metrics import Metrics
from gateway.transport.names import Names
from gateway.turns import Turns

#: Seconds that aborts still under way get at the end of the process.
ABORT_GRACE = 1.0
#: Seconds that workers known without a store wait for it to say which of them are paused or held.
FIRST_WORD = 1.0


@dataclass(frozen=True, slots=True)
class Outside:
    """What lives longer than an app, or is shared with others. ``lock`` is held while one of several
    processes writes to standard output."""

    store: Store
    keys: Sources
    tls: Renewed | None
    siblings: Siblings | None
    lock: AbstractContextManager[object] | None


class Background:
    """What runs beside the exchanges: the store, probes, the loop's lag, aborts under way, the access log."""

    def __init__(  # noqa: PLR0913 - all that begins and ends with the application
        self,
        services: Services,
        store: Store,
        members: Members,
        sharing: Sharing,
        member: Member | None,
        allowed: Sequence[UrlPattern],
    ) -> None:
        self._services = services
        self._store = store
        self._members = members
        self._sharing = sharing
        self._allowed = allowed
        self._member = member
        self._tasks = Tasks()
        #: Made of files that are read again when they change.
        self.kept_fresh: list[Refreshable] = []

    async def start(self) -> None:
        """Begin to watch every worker; returns at once, whatever the workers do, unless this replaces a
        process of several."""
        services, marks = self._services, self._sharing.marks
        if self._member is not None:
            await self._member.start(services.fleet)
        following = follow(self._store, self._members, marks, self._allowed)
        self._tasks.spawn(following, "following the store")
        self._tasks.spawn(self._watch_workers(), "beginning to watch workers")
        self._tasks.spawn(keep_fresh(self.kept_fresh), "reading keys and certificates again")
        self._tasks.spawn(services.metrics.watch_loop(), "event loop delay")
        if services.queue.on:
            self._tasks.spawn(services.queue.serve(), "requests that wait for a worker")
        if self._member is not None:
            await self._member.meet(services.fleet)

    async def _watch_workers(self) -> None:
        """One that is paused must not get requests before that is known; but a store that is away keeps none
        from serving."""
        if self._store.keeps_marks:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WORD):
                    await self._sharing.marks.told.wait()
        self._members.watch_all()

    async def stop(self) -> None:
        """End all of it; aborts under way get a moment to be heard."""
        services = self._services
        await services.aborter.close(ABORT_GRACE)
        await self._sharing.close()
        await self._store.close()
        await services.health.stop()
        await self._tasks.stop()
        services.fleet.close()
        services.access_log.close()
        if self._member is not None:
            await self._member.stop()


class Gateway:
    """The ASGI application. ``lifecycle`` and ``fleet`` are for the process around it and for tests;
    ``pace``, ``outbox``, ``limits`` and ``hit``, which is told of each limit that a client hit, for our own
    listener."""

    def __init__(
        self,
        endpoints: Mapping[str, tuple[Endpoint, GenerateHandler]],
        control: Application,
        services: Services,
        background: Background,
        limits: ClientLimits,
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
        self.limits = limits
        self.hit = services.metrics.hit
        self.outbox = services.fleet.outbox
        self.lifecycle = services.lifecycle
        self.fleet = services.fleet

    def keep_fresh(self, thing: Refreshable) -> None:
        """Have ``thing`` refreshed as well, for as long as the application is served."""
        self._background.kept_fresh.append(thing)

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
    store = STORES[settings.discovery_backend](settings)
    keys, tls = sources_of(settings), worker_tls(settings)
    outside = Outside(store=store, keys=keys, tls=tls, siblings=siblings, lock=lock)
    services = _services(settings, [endpoint.format for endpoint in catalog], outside)
    sharing = Sharing(Marks(services.fleet), store)
    members = _members(settings, services, sharing.marks)
    registrar = Registrar(store, members, services.fleet, settings.worker_patterns, sharing)
    member = None if siblings is None else _member(siblings, services, catalog, sharing)
    views = _views(services, registrar, member, Pauses(sharing))
    relays = _relays(settings, formats, catalog, reserved)
    _check_timed_paths(settings, [endpoint.path for endpoint in (*catalog, *relays)])
    app = control_app(settings, catalog, views, relays)
    control = _behind_a_door(app, settings, formats, services.guard)
    handlers = {
        endpoint.path: (
            endpoint,
            GenerateHandler(
                endpoint.path,
                endpoint.format,
                services,
                endpoint.operation,
                settings.timeouts(endpoint.path),
            ),
        )
        for endpoint in (*catalog, *relays)
    }
    background = Background(services, store, members, sharing, member, settings.worker_patterns)
    background.kept_fresh += [*keys.all, *([] if tls is None else [tls])]
    return Gateway(handlers, control, services, background, _client_limits(settings))


def _client_limits(settings: Settings) -> ClientLimits:
    return ClientLimits(
        settings.head_limit,
        settings.header_timeout_secs,
        settings.body_timeout_secs,
        settings.body_min_rate,
        settings.unread_timeout_secs or None,
        settings.keep_alive_timeout_secs,
        settings.share(settings.max_connections),
        settings.overload_status_code,
    )


def _check_timed_paths(settings: Settings, served: Collection[str]) -> None:
    for name, paths in settings.timed_paths().items():
        for path in paths:
            if path not in served:
                raise CatalogError(f"{settings.source_of(name)}: {path!r} is no inference route")


def _relays(
    settings: Settings, formats: Mapping[str, AnyFormat], catalog: Sequence[Endpoint], reserved: Sequence[str]
) -> Sequence[Endpoint]:
    try:
        return catalogs.relays(
            formats, catalog, added=settings.relay_path, chosen=settings.format_options, reserved=reserved
        )
    except CatalogError as error:
        raise CatalogError(f"{settings.source_of('relay_path')}: {error}") from error


def _member(siblings: Siblings, services: Services, catalog: Sequence[Endpoint], sharing: Sharing) -> Member:
    formats = {endpoint.format.name: endpoint.format for endpoint in catalog}
    return Member(siblings, services.metrics, services.lifecycle, services.aborter, formats, sharing)


def _views(services: Services, registrar: Registrar, member: Member | None, pauses: Pauses) -> Views:
    fleet, lifecycle, metrics = services.fleet, services.lifecycle, services.metrics.render
    if member is None:
        return Views(fleet, lifecycle, services.aborter, metrics, registrar, pauses)
    return Views(fleet, lifecycle, member.aborter, metrics, registrar, pauses, member.whole)


def _behind_a_door(
    control: Application, settings: Settings, formats: Mapping[str, AnyFormat], guard: Guard
) -> Application:
    if not guard.armed:
        return control
    aborting = {
        path: formats[name] for name, paths in ABORT_PATHS.items() for path in paths if name in formats
    }
    realms = Realms(
        open_paths=(*system.open_paths(settings), DOCS_PATH, OPENAPI_PATH),
        inference=(*aborting, *information.inference_paths(), sessions.PATH),
        inference_trees=(settings.models_path,),
        metrics=(settings.metrics_path, engine_metrics.PATH),
    )
    dialects = {path: format.render for path, format in aborting.items()}
    return Door(control, guard, realms.of, dialects)


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


def _members(settings: Settings, services: Services, marks: Marks) -> Members:
    services.fleet.vanished = lambda url: marks.lift(url, held=False)
    members = Members(services.fleet, services.health, settings.worker_authorization, marks)
    for entry in settings.workers:
        members.pin(WorkerRecord(entry.url, format=entry.format))
    return members


def _services(settings: Settings, formats: Sequence[AnyFormat], outside: Outside) -> Services:
    store, tls, siblings = outside.store, outside.tls, outside.siblings
    shield = Shield(settings.poison_window_seconds)
    fleet = Fleet(
        POLICIES[settings.router_mode](random.Random()),
        settings.connect_timeout_secs,
        None if tls is None else tls.context,
        died=lambda life: shield.died(life, time.monotonic()),
        names=Names(),
        min_weight_version=settings.min_weight_version,
        most_in_flight=settings.share(settings.max_in_flight_per_worker),
        head=settings.head_limit,
        homes=Homes(settings.router_overload_factor),
    )
    in_flight: InFlight[Running] = InFlight(shared=siblings is not None)
    access_log = AccessLog(
        enabled=settings.access_log,
        shape=settings.access_log_format,
        lock=outside.lock,
        process=None if siblings is None else siblings.process,
    )
    interval = settings.sse_keep_alive_interval_ms
    metrics = Metrics(
        settings.metrics_prefix,
        settings.buckets,
        Now(
            workers=lambda: fleet.workers,
            dropped_lines=lambda: access_log.dropped,
            store_healthy=lambda: store.healthy,
            waiting=lambda: queue.waiting,
        ),
        supervisor=None if siblings is None else siblings.supervisor,
    )
    fleet.moved, fleet.placed = metrics.moved, metrics.placed
    queue = Queue(
        fleet,
        metrics,
        seconds=settings.hold_seconds,
        requests=settings.hold_requests,
        size=settings.hold_bytes,
        limited=settings.max_in_flight_per_worker is not None,
    )
    lifecycle = Lifecycle(settings.share(settings.max_in_flight), settings.drain_delay_secs)
    return Services(
        fleet=fleet,
        queue=queue,
        health=Health(fleet, formats, settings.probe_interval_secs),
        in_flight=in_flight,
        aborter=Aborter(in_flight),
        lifecycle=lifecycle,
        turns=Turns(),
        shield=shield,
        guard=guard_of(settings, outside.keys, metrics.unauthorized),
        metrics=metrics,
        access_log=access_log,
        body_limit=settings.body_limit,
        overload_status=settings.overload_status_code,
        keep_alive=None if interval is None else interval / 1000,
    )
