"""The composition root: it constructs every component and passes it to those that use it.

Owns: which component gets which. Must never enter: the behaviour of a component.

Components are constructed in the order of their dependencies, and get what they need as constructor
arguments.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from gateway.catalog import Endpoint, EngineRoutes
from gateway.control import engine_metrics, information, sessions, system
from gateway.control.app import DOCS_PATH, OPENAPI_PATH, control_app, reserved_paths
from gateway.control.views import Views
from gateway.downstream.asgi import AsgiApp
from gateway.downstream.cross_origin import CrossOrigin
from gateway.downstream.limits import ClientLimits
from gateway.fleet.client import WorkerCalls
from gateway.fleet.cordons import Cordons
from gateway.fleet.health.health import Health
from gateway.fleet.members import FleetMembership
from gateway.fleet.queue import Queue
from gateway.fleet.registration import Registration
from gateway.fleet.registry import Fleet
from gateway.fleet.sync import StoreFollower
from gateway.formats.base import AnyFormat
from gateway.loop.time_slices import TimeSlices
from gateway.prefork.creators import send_creator
from gateway.prefork.findings import send_findings
from gateway.prefork.member import ProcessLink
from gateway.prefork.peers import Peers
from gateway.prefork.replication import send_cordons
from gateway.proxy.aborts import Aborter
from gateway.proxy.body_release import BodyRelease
from gateway.proxy.handler import GenerateHandler
from gateway.proxy.in_flight import InFlight, InFlightEntry
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.query_of_death import QueryOfDeathGuard
from gateway.proxy.resources import Resources
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
from gateway.stores.last_writer_wins.replication import no_peers
from gateway.stores.record import WorkerRecord
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.buckets import Buckets
from gateway.telemetry.exporter import MetricsExporter
from gateway.telemetry.exposition import CurrentValues
from gateway.telemetry.metrics import Metrics
from gateway.upstream.connector import Connector
from gateway.upstream.via import Via
from gateway.wiring.background import Background
from gateway.wiring.cards import card_builder
from gateway.wiring.endpoints import serving
from gateway.wiring.gateway import Gateway
from gateway.wiring.route_table import RouteTable
from gateway.wiring.security import KeySources, guard_of, sources_of
from gateway.wiring.stores import STORES
from gateway.wiring.tls import worker_tls


@dataclass(frozen=True, slots=True)
class SharedResources:
    """What a gateway shares with files, stores and other processes.

    ``tls`` is the context for https workers. ``peers`` is None if this is the only process. ``lock`` is held
    while one of several processes writes to standard output. ``via`` is the gateway's entry in ``Via``.
    """

    store: Store
    keys: KeySources
    tls: ReloadingContext | None
    peers: Peers | None
    lock: AbstractContextManager[object] | None
    via: Via


def create_app(
    settings: Settings,
    *,
    catalog: Sequence[Endpoint] | None = None,
    peers: Peers | None = None,
    lock: AbstractContextManager[object] | None = None,
    via: Via | None = None,
) -> Gateway:
    """Return a gateway for ``settings``. A process may have several.

    ``catalog`` replaces the default list of endpoints. ``peers``, ``lock`` and ``via`` are as in
    SharedResources. Raise CatalogError, FormatError or SettingsError.
    """
    served = serving(settings, catalog)
    store = STORES[settings.discovery_backend](settings)
    shared = SharedResources(store, sources_of(settings), worker_tls(settings), peers, lock, via or Via())

    services, cordons = make_services(settings, list(served.formats.values()), shared)
    fleet, lifecycle, aborter = services.fleet, services.lifecycle, services.aborter
    follower = StoreFollower(store)
    exporter = _exporter(settings, services, follower, peers)

    members = FleetMembership(fleet, services.health, settings.worker_authorization, cordons)
    for entry in settings.workers:
        members.pin(WorkerRecord(entry.url, format=entry.format))
    registration = Registration(store, members, fleet, settings.worker_patterns, cordons)

    calls = WorkerCalls(services.health.report_refused)
    describe = services.health.describe
    views = Views(fleet, lifecycle, aborter, exporter.render, registration, cordons, describe, calls)
    process_link = None
    if peers is not None:
        process_link = ProcessLink(
            peers,
            exporter,
            lifecycle,
            aborter,
            served.formats,
            cordons,
            members,
            fleet,
            describe,
            services.query_of_death,
            services.resources,
        )
        views = replace(
            views,
            aborter=process_link.aborter,
            describe=process_link.describer.describe,
            aggregate=process_link.aggregate,
        )
    control = control_app(settings, served.generate, views, served.routes, served.relays)

    refreshed: list[Refreshable] = [*shared.keys.all]
    if shared.tls is not None:
        refreshed.append(shared.tls)
    patterns = settings.worker_patterns
    background = Background(services, follower, members, cordons, process_link, patterns, refreshed)
    return Gateway(
        RouteTable(
            (*served.generate, *served.relays),
            partial(_handler, settings, services),
            reserved_paths(settings, served.routes),
        ),
        _with_keys(control, settings, served.routes, services.guard),
        services,
        background,
        _client_limits(settings),
    )


def make_services(
    settings: Settings, formats: Sequence[AnyFormat], shared: SharedResources
) -> tuple[Services, Cordons]:
    """Return the components that exchanges use, and the fleet's cordons."""
    peers = shared.peers
    metrics = Metrics(Buckets(**settings.bucket_bounds))
    notify = None if peers is None else partial(send_findings, peers)
    query_of_death = QueryOfDeathGuard(settings.poison_window_seconds, notify)
    fleet = Fleet(
        POLICIES[settings.router_mode](random.Random()),
        Connector(
            settings.connect_timeout_secs,
            None if shared.tls is None else shared.tls.context,
            head=settings.head_limit,
            via=shared.via,
        ),
        on_death=lambda url, incarnation: query_of_death.worker_died(url, incarnation, time.monotonic()),
        min_weight_version=settings.min_weight_version,
        most_in_flight=settings.share(settings.max_in_flight_per_worker),
        affinity=RendezvousAffinity(settings.router_overload_factor),
        metrics=metrics,
        cards=card_builder(settings, formats),
    )
    send_to_peers = no_peers if peers is None else partial(send_cordons, peers)
    cordons = Cordons(fleet, shared.store, send_to_peers)
    in_flight: InFlight[InFlightEntry] = InFlight(None if peers is None else peers.ids)
    interval = settings.sse_keep_alive_interval_ms
    services = Services(
        lifecycle=Lifecycle(settings.share(settings.max_in_flight), settings.drain_delay_secs),
        via=shared.via,
        guard=guard_of(settings, shared.keys, metrics.unauthorized),
        body_limit=settings.body_limit,
        overload_status=settings.overload_status_code,
        time_slices=TimeSlices(),
        in_flight=in_flight,
        query_of_death=query_of_death,
        fleet=fleet,
        queue=Queue(
            fleet,
            metrics,
            seconds=settings.queue_seconds,
            requests=settings.queue_requests,
            size=settings.queue_bytes,
            limited=settings.max_in_flight_per_worker is not None,
        ),
        health=Health(
            fleet,
            formats,
            settings.probe_interval_secs,
            first=peers is None or peers.first,
            on_unreachable=cordons.on_unreachable,
        ),
        body_release=BodyRelease(),
        resources=Resources(notify=None if peers is None else partial(send_creator, peers)),
        sse_comment_interval=None if interval is None else interval / 1000,
        aborter=Aborter(in_flight),
        metrics=metrics,
        access_log=AccessLog(
            enabled=settings.access_log,
            shape=settings.access_log_format,
            lock=shared.lock,
            process=None if peers is None else peers.process,
        ),
    )
    return services, cordons


def _exporter(
    settings: Settings, services: Services, follower: StoreFollower, peers: Peers | None
) -> MetricsExporter:
    """Return the exporter of what ``services`` count, and of what they and the store are at a scrape."""
    return MetricsExporter(
        settings.metrics_prefix,
        services.metrics.buckets,
        services.metrics.tallies,
        CurrentValues(
            workers=lambda: services.fleet.workers,
            dropped_lines=lambda: services.access_log.dropped,
            store_healthy=lambda: follower.healthy,
            waiting=lambda: services.queue.waiting,
        ),
        supervisor=None if peers is None else peers.supervisor,
    )


def _handler(settings: Settings, services: Services, each: Endpoint) -> GenerateHandler:
    """Return the handler of one endpoint."""
    return GenerateHandler(each.path, each.format, services, each.operation, settings.timeouts(each.path))


def _client_limits(settings: Settings) -> ClientLimits:
    """Return the limits that the listener keeps clients within."""
    origins = [origin.encode() for origin in settings.cors_origin]
    return ClientLimits(
        settings.head_limit,
        settings.header_timeout_secs,
        settings.body_timeout_secs,
        settings.body_min_rate,
        settings.unread_timeout_secs or None,
        settings.keep_alive_timeout_secs,
        settings.share(settings.max_connections),
        settings.overload_status_code,
        cross_origin=CrossOrigin(origins) if origins else None,
    )


def _with_keys(control: AsgiApp, settings: Settings, routes: EngineRoutes, guard: Guard) -> AsgiApp:
    """Return the control plane ``control`` so that it requires keys, if keys are configured."""
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
