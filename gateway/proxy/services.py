"""The parts of a gateway that its exchanges use.

Owns: the list of these parts. Must never enter: the use of any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.fleet.health.health import Health
from gateway.fleet.queue import Queue
from gateway.fleet.registry import Fleet
from gateway.loop.time_slices import TimeSlices
from gateway.proxy.aborts import Aborter
from gateway.proxy.body_release import BodyRelease
from gateway.proxy.in_flight import InFlight, InFlightEntry
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.query_of_death import QueryOfDeathGuard
from gateway.proxy.resources import Resources
from gateway.security.guard import Guard
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.metrics import Metrics
from gateway.upstream.via import Via


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a gateway that its exchanges use, by the first phase that uses them.

    ``body_limit`` is in bytes. ``overload_status`` is the status of every refusal for lack of capacity.
    ``sse_comment_interval`` is in seconds; None: no comment is sent.
    """

    # 1 accept
    lifecycle: Lifecycle
    guard: Guard
    via: Via
    body_limit: int
    overload_status: int
    # 2 parse
    time_slices: TimeSlices
    # 3 project
    in_flight: InFlight[InFlightEntry]
    query_of_death: QueryOfDeathGuard
    # 4 lease, 5 open
    fleet: Fleet
    queue: Queue
    health: Health
    body_release: BodyRelease
    resources: Resources
    # 7 feed
    sse_comment_interval: float | None
    # 9 release
    aborter: Aborter
    metrics: Metrics
    access_log: AccessLog
