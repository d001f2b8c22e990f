"""What one exchange holds while it runs, and how all of it is given back.

Owns: the lease, the connection, the ids, the watch and the record of one exchange. Must never enter: a
dialect, ASGI, the order of the phases.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway import poison
from gateway.aborts import Aborter, Running
from gateway.downstream import Client
from gateway.drive import Drive
from gateway.errors import (
    Aborted,
    Cancelled,
    ConnectFailed,
    GatewayError,
    Source,
    UpstreamIncomplete,
    UpstreamMalformed,
    error_type_of,
)
from gateway.exchange import Event, Exchange
from gateway.fleet.health import Health
from gateway.fleet.registry import Fleet
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat, Ending, Ids, Projection, Reader
from gateway.formats.json_splice import remove_member
from gateway.inflight import InFlight
from gateway.lifecycle import Lifecycle
from gateway.security.guard import Guard
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.metrics import Metrics
from gateway.transport.http1 import Connection

log = logging.getLogger(__name__)

#: How long the id of a stream that ended well is not given to another exchange, in seconds.
STREAM_LINGER = 3.0


@dataclass(frozen=True, slots=True)
class Services:
    """What every exchange needs. ``body_limit`` is in bytes, ``keep_alive`` in seconds (None = never)."""

    fleet: Fleet
    health: Health
    in_flight: InFlight[Running]
    aborter: Aborter
    lifecycle: Lifecycle
    shield: poison.Shield
    guard: Guard
    metrics: Metrics
    access_log: AccessLog
    body_limit: int
    keep_alive: float | None


class Run:
    """One exchange at work. ``close`` gives back whatever was taken, in whatever phase it ended."""

    __slots__ = (
        "_body",
        "_id_member",
        "_sent",
        "_services",
        "_drive",
        "_life",
        "client",
        "connection",
        "exchange",
        "reader",
        "running",
        "worker",
    )

    def __init__(
        self,
        client: Client,
        format: AnyFormat,
        endpoint: str,
        drive: Drive,
        services: Services,
    ) -> None:
        self.client = client
        self._services = services
        self._drive = drive
        self._sent = False
        self._life: object = None
        self._body = b""
        self._id_member: str | None = None
        self.exchange = Exchange(format.name, endpoint, time.monotonic(), services.metrics.gap_bounds)
        self.running: Running | None = None
        self.worker: Worker | None = None
        self.connection: Connection | None = None
        self.reader: Reader | None = None
        services.metrics.started(self.exchange)

    def enter(self) -> None:
        """Be counted as open. Raises Draining."""
        self._services.lifecycle.enter(self._drive)

    def watch(self) -> None:
        """End this exchange when its client leaves; its request body has been read."""
        self.client.watch(lambda: self._end(Cancelled("the client left")))

    def claim(self, format: AnyFormat, request: Any, projection: Projection, body: bytes) -> Running:
        """Take ids for the request, which came as ``body``, and become findable under the public ones.

        Raises Poisoned, before anything is taken.
        """
        in_flight, exchange, shield = self._services.in_flight, self.exchange, self._services.shield
        self._body, self._id_member = body, projection.id_member
        if shield.armed:
            shield.check(self._digest(), time.monotonic())
        ids = in_flight.claim(projection.ids, projection.ids_usable)
        exchange.stream = projection.stream
        exchange.public_id = ids.public[0]
        exchange.prompt_tokens = projection.prompt_tokens
        self.running = Running(format, request, ids, lambda: self._end(Aborted("the request was aborted")))
        self.running.named = bool(projection.ids) and not ids.private
        in_flight.enter(ids, self.running)
        return self.running

    def lease(self, running: Running, model: str | None, tried: Sequence[Worker]) -> Worker:
        """Hold a worker that was not ``tried``. Raises what Fleet.lease does."""
        exchange, capability = self.exchange, running.format.capability
        worker = self._services.fleet.lease(capability, model, tried)
        self.worker = worker
        self._life = worker.life
        info = worker.offers(capability)
        models = info.models if info is not None else ()
        exchange.worker = worker.url
        exchange.model = model if model in models else models[0] if models and model is None else None
        exchange.attempts += 1
        exchange.on(Event.DISPATCH)
        return worker

    def unlease(self, worker: Worker, error: GatewayError) -> None:
        """Let go of a worker that provably did not take the request, because of ``error``."""
        self.exchange.on(Event.RETRY)
        self._sent = False
        self.worker = None
        if self.running is not None:
            self.running.worker = None
        self._services.fleet.release(worker)
        self._services.health.suspect(worker, refused=isinstance(error, ConnectFailed))

    def sending(self, running: Running, connection: Connection) -> None:
        """From now on the worker may have the request."""
        self.connection = connection
        running.worker = self.worker
        self.exchange.dispatched_at = time.monotonic()
        self._sent = True

    def saw(self, tokens: int) -> None:
        """``tokens`` are known to have been generated so far."""
        now = time.monotonic()
        self.exchange.saw_tokens(tokens, now)
        if self.worker is not None:
            self.worker.last_reply_at = now

    def close(self, error: GatewayError | None) -> None:
        """Give everything back and record the end; ``error`` is what ended it, None: the reply was whole."""
        self.client.unwatch()
        self._services.lifecycle.leave(self._drive)
        self._close_upstream(error)
        if self.running is not None:
            self._free(self.running, error)
        self._record(error)
        # An engine whose inner process died may still say so itself, with an error of its own making.
        if self.exchange.ending is Ending.INCOMPLETE or self.exchange.reply_error == "internal":
            self._accuse()

    def _end(self, reason: GatewayError) -> None:
        self._services.lifecycle.end(self._drive, reason)

    def _close_upstream(self, error: GatewayError | None) -> None:
        worker = self.worker
        if worker is None:
            return
        if self.connection is not None:
            if error is None and not self._refused_in_stream():
                worker.pool.give_back(self.connection)
                worker.last_reply_at = time.monotonic()
            else:
                self.connection.close()
        self._services.fleet.release(worker)
        if isinstance(error, UpstreamIncomplete | UpstreamMalformed):
            self._services.health.suspect(worker, refused=False)

    def _free(self, running: Running, error: GatewayError | None) -> None:
        self._services.in_flight.leave(running.ids, running)
        if self._sent and error is not None and self.worker is not None:
            self._services.aborter.left(running, self.worker)
        elif self._sent and self.exchange.stream and running.named:
            # An engine was seen to abort, 2 s after a stream had ended, whatever ran under its id by then or
            # under an id that begins with it: nobody else gets the id before.
            loop = asyncio.get_running_loop()
            loop.call_later(STREAM_LINGER, self._services.in_flight.release, running.ids)
        else:
            self._services.in_flight.release(running.ids)

    def _refused_in_stream(self) -> bool:
        """An engine was seen to break the connection of such a stream 2 s later, whatever used it by then."""
        return self.exchange.stream and self.reader is not None and self.reader.facts.error_status is not None

    def _record(self, error: GatewayError | None) -> None:
        exchange = self.exchange
        if self.reader is not None:
            facts = self.reader.facts
            if facts.prompt_tokens is not None:
                exchange.prompt_tokens = facts.prompt_tokens
            exchange.cached_tokens = facts.cached_tokens
            exchange.finish_reasons = tuple(facts.finish_reasons)
            exchange.ending = facts.ending
            exchange.routing_data = facts.routing_data
            if facts.error_status is not None:
                exchange.reply_error = error_type_of(facts.error_status)
                if facts.error_status in (429, 503) and self.worker is not None:
                    self._services.health.refused(self.worker, facts.error_status, None)
        exchange.end(_event_of(error), time.monotonic(), error)
        self._services.metrics.ended(exchange)
        self._services.access_log.record(exchange)
        if error is not None and error.source is Source.UPSTREAM:
            log.info("%s at %s: %s%s", error.code, exchange.worker, error.message, _cause(error))

    def _accuse(self) -> None:
        """Tell the shield of a body whose reply broke off; its worker may be dying of it."""
        shield = self._services.shield
        if shield.on:
            shield.broke(self._digest(), self._life, time.monotonic())

    def _digest(self) -> bytes:
        """Tells the request's body from others, whatever ids the client gave to it this time."""
        member = self._id_member
        return poison.digest(self._body if member is None else remove_member(self._body, member))


def _cause(error: GatewayError) -> str:
    """What is behind a failure, for the log. Only the system's own words: others may quote a reply."""
    cause = error.cause
    if cause is None:
        return ""
    text = f": {cause}" if isinstance(cause, OSError) else ""
    return f" ({type(cause).__name__}{text})"


def _event_of(error: GatewayError | None) -> Event:
    if error is None:
        return Event.FINISH
    return Event.CANCEL if isinstance(error, Cancelled | Aborted) else Event.FAIL


def public_id_line(ids: Ids) -> list[tuple[bytes, bytes]]:
    """``x-request-id`` with the id the client knows, if a header can hold it, blanks at its ends and all."""
    public = ids.public[0]
    if not 0 < len(public) <= 1024 or public[0] == " " or public[-1] == " ":
        return []
    if public.isascii() and public.isprintable():
        return [(b"x-request-id", public.encode())]
    return []
