"""The composition root: every part is made here and given what it needs.

Owns: which part is wired to which, and the switch that sends generate routes to their handler before FastAPI
sees them. Must never enter: behaviour of a part.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from gateway.catalog import Endpoint, EngineRoutes
from gateway.control import engine_metrics, information, sessions, system
from gateway.control.app import DOCS_PATH, OPENAPI_PATH, control_app
from gateway.control.views import Views
from gateway.downstream.asgi import AsgiApp, Receive, Scope, Send
from gateway.downstream.asgi_client import AsgiClient
from gateway.downstream.client import Client
from gateway.downstream.lifespan import lifespan
from gateway.downstream.limits import ClientLimits
from gateway.downstream.start_pacing import StartPacer
from gateway.errors import MethodNotAllowed
from gateway.fleet.cordons.cordons import Cordons
from gateway.fleet.cordons.replication import CordonReplication, no_peers
from gateway.fleet.health.health import Health
from gateway.fleet.members import Members
from gateway.fleet.queue import Queue
from gateway.fleet.registration import Registration
from gateway.fleet.registry import Fleet
from gateway.fleet.sync import StoreFollower
from gateway.formats.base import AnyFormat
from gateway.loop.time_slices import TimeSlices
from gateway.prefork.member import Member
from gateway.prefork.peers import Peers
from gateway.prefork.replication import send_cordons
from gateway.proxy.aborts import Aborter
from gateway.proxy.body_release import BodyRelease
from gateway.proxy.handler import GenerateHandler
from gateway.proxy.in_flight import InFlight, InFlightEntry
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.query_of_death import QueryOfDeathGuard
from gateway.proxy.services import Services
from gateway.routing.policy import POLICIES
from gateway.routing.rendezvous import RendezvousAffinity
from gateway.security.auth_middleware import AuthMiddleware
from gateway.security.file_changes import Refreshable
from gateway.security.guard import Guard
from gateway.security.scopes import ScopeTable
from gateway.security.tls import ReloadingContext
from gateway.settings import Settings
from gateway.stores.base import Store
from gateway.stores.record import WorkerRecord
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.exposition import CurrentValues
from gateway.telemetry.metrics import Metrics
from gateway.upstream.resolver import Resolver
from gateway.wiring.background import Background
from gateway.wiring.endpoints import serving
from gateway.wiring.security import KeySources, guard_of, sources_of
from gateway.wiring.stores import STORES
from gateway.wiring.tls import worker_tls


@dataclass(frozen=True, slots=True)
class Shared:
    """What lives longer than an app, or is shared with others. ``lock`` is held while one of several
    processes writes to standard output."""

    store: Store
    following: StoreFollower
    keys: KeySources
    tls: ReloadingContext | None
    peers: Peers | None
    lock: AbstractContextManager[object] | None


class Gateway:
    """The ASGI application. ``lifecycle`` and ``fleet`` are for the process around it and for tests;
    ``start_pacer``, ``write_batch``, ``limits`` and ``hit``, which counts a limit that a client exceeded, for
    our own listener."""

    def __init__(
        self,
        endpoints: Mapping[str, tuple[Endpoint, GenerateHandler]],
        control: AsgiApp,
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
        self.start_pacer = StartPacer()
        self.limits = limits
        self.hit = services.metrics.hit
        self.write_batch = services.fleet.write_batch
        self.lifecycle = services.lifecycle
        self.fleet = services.fleet

    def limit_connections(self, clients: int, own: int) -> None:
        """Allow at most ``clients`` connections of clients, and ``own`` of each kind of the gateway's own."""
        most = min(self.limits.connections or clients, clients)
        self.limits = self.limits._replace(connections=most)
        self.fleet.quotas.limit(own)

    def keep_fresh(self, thing: Refreshable) -> None:
        """Have ``thing`` refreshed as well, for as long as the application is served."""
        self._background.kept_fresh.append(thing)

    def direct_route(self, path: bytes, method: bytes) -> Callable[[Client], None] | None:
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
    peers: Peers | None = None,
    lock: AbstractContextManager[object] | None = None,
) -> Gateway:
    """A gateway for ``settings``; may be called any number of times in a process.

    ``catalog`` replaces the default list of endpoints. ``peers`` are the other processes where this is one
    of several, and ``lock`` is held while one of them writes to standard output. Raises CatalogError and
    FormatError.
    """
    served = serving(settings, catalog)
    store = STORES[settings.discovery_backend](settings)
    keys, tls = sources_of(settings), worker_tls(settings)
    shared = Shared(store, StoreFollower(store), keys=keys, tls=tls, peers=peers, lock=lock)
    formats = {endpoint.format.name: endpoint.format for endpoint in served.generate}
    services, replication = _services(settings, list(formats.values()), shared)
    members = _members(settings, services, replication)
    registration = Registration(store, members, services.fleet, settings.worker_patterns, replication)
    member = None if peers is None else _member(peers, services, formats, replication, members)
    views = _views(services, registration, member, replication)
    app = control_app(settings, served.generate, views, served.routes, served.relays)
    control = _behind_a_door(app, settings, served.routes, services.guard)
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
        for endpoint in (*served.generate, *served.relays)
    }
    background = Background(
        services, shared.following, members, replication, member, settings.worker_patterns
    )
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


def _member(
    peers: Peers,
    services: Services,
    formats: Mapping[str, AnyFormat],
    replication: CordonReplication,
    members: Members,
) -> Member:
    metrics, aborter = services.metrics, services.aborter
    return Member(peers, metrics, services.lifecycle, aborter, formats, replication, members)


def _views(
    services: Services, registration: Registration, member: Member | None, pauses: CordonReplication
) -> Views:
    fleet, lifecycle, metrics = services.fleet, services.lifecycle, services.metrics.render
    if member is None:
        return Views(fleet, lifecycle, services.aborter, metrics, registration, pauses)
    return Views(fleet, lifecycle, member.aborter, metrics, registration, pauses, member.aggregate)


def _behind_a_door(control: AsgiApp, settings: Settings, routes: EngineRoutes, guard: Guard) -> AsgiApp:
    if not guard.armed:
        return control
    scopes = ScopeTable(
        open_paths=(*system.open_paths(settings), DOCS_PATH, OPENAPI_PATH),
        inference=(*routes.aborts, *information.inference_paths(routes), sessions.PATH),
        inference_trees=(settings.models_path,),
        metrics=(settings.metrics_path, engine_metrics.PATH),
    )
    dialects = {path: format.render for path, format in routes.aborts.items()}
    return AuthMiddleware(control, guard, scopes.of, dialects)


def _members(settings: Settings, services: Services, replication: CordonReplication) -> Members:
    members = Members(services.fleet, services.health, settings.worker_authorization, replication)
    for entry in settings.workers:
        members.pin(WorkerRecord(entry.url, format=entry.format))
    return members


def _services(
    settings: Settings, formats: Sequence[AnyFormat], shared: Shared
) -> tuple[Services, CordonReplication]:
    tls, peers = shared.tls, shared.peers
    access_log = AccessLog(
        enabled=settings.access_log,
        shape=settings.access_log_format,
        lock=shared.lock,
        process=None if peers is None else peers.process,
    )
    metrics = Metrics(
        settings.metrics_prefix,
        settings.buckets,
        # Called by each scrape, so that the fleet and the queue, which count in these metrics, are there.
        CurrentValues(
            workers=lambda: fleet.workers,
            dropped_lines=lambda: access_log.dropped,
            store_healthy=lambda: shared.following.healthy,
            waiting=lambda: queue.waiting,
        ),
        supervisor=None if peers is None else peers.supervisor,
    )
    query_of_death = QueryOfDeathGuard(settings.poison_window_seconds)
    fleet = Fleet(
        POLICIES[settings.router_mode](random.Random()),
        settings.connect_timeout_secs,
        None if tls is None else tls.context,
        on_death=lambda incarnation: query_of_death.worker_died(incarnation, time.monotonic()),
        resolver=Resolver(),
        min_weight_version=settings.min_weight_version,
        most_in_flight=settings.share(settings.max_in_flight_per_worker),
        head=settings.head_limit,
        affinity=RendezvousAffinity(settings.router_overload_factor),
        metrics=metrics,
    )
    send_to_peers = no_peers if peers is None else partial(send_cordons, peers)
    replication = CordonReplication(Cordons(fleet), shared.store, send_to_peers)
    health = Health(fleet, formats, settings.probe_interval_secs, on_unreachable=replication.on_unreachable)
    in_flight: InFlight[InFlightEntry] = InFlight(shared=peers is not None)
    interval = settings.sse_keep_alive_interval_ms
    queue = Queue(
        fleet,
        metrics,
        seconds=settings.queue_seconds,
        requests=settings.queue_requests,
        size=settings.queue_bytes,
        limited=settings.max_in_flight_per_worker is not None,
    )
    lifecycle = Lifecycle(settings.share(settings.max_in_flight), settings.drain_delay_secs)
    services = Services(
        fleet=fleet,
        queue=queue,
        health=health,
        in_flight=in_flight,
        aborter=Aborter(in_flight),
        lifecycle=lifecycle,
        time_slices=TimeSlices(),
        body_release=BodyRelease(),
        query_of_death=query_of_death,
        guard=guard_of(settings, shared.keys, metrics.unauthorized),
        metrics=metrics,
        access_log=access_log,
        body_limit=settings.body_limit,
        overload_status=settings.overload_status_code,
        sse_comment_interval=None if interval is None else interval / 1000,
    )
    return services, replication
