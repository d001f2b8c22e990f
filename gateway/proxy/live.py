"""What one exchange holds while it runs, and how all of it is given back.

Owns: the lease, the connection, the ids, the watch and the record of one exchange. Must never enter: a
dialect, ASGI, the order of the phases.

One class, as ``close`` gives back what all the others take: whoever changes one half has to read the other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.downstream.client import Client
from gateway.errors import (
    Aborted,
    Cancelled,
    ConnectFailed,
    GatewayError,
    OutOfSockets,
    Overloaded,
    Source,
    UpstreamIncomplete,
    UpstreamMalformed,
    error_type_of,
)
from gateway.exchange import Event, ExchangeRecord
from gateway.fleet.health.health import Health
from gateway.fleet.queue import Queue, excluded
from gateway.fleet.registry import Fleet
from gateway.fleet.roster import models_of
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ending, Headers, Ids, Projection, Reader, ReplyFacts, ReplyHead, header
from gateway.formats.json.splice import remove_member
from gateway.formats.optional import ReleasesBody
from gateway.limits import Timeouts
from gateway.loop.stepper import CoroutineStepper
from gateway.loop.time_slices import TimeSlices
from gateway.proxy import query_of_death as poison
from gateway.proxy.aborts import Aborter, Running
from gateway.proxy.body_release import BodyRelease
from gateway.proxy.deadlines import Watch
from gateway.proxy.in_flight import InFlight
from gateway.proxy.lifecycle import Lifecycle
from gateway.security.guard import Guard
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.metrics import Metrics
from gateway.upstream.connection import Connection

log = logging.getLogger(__name__)

_COUNT = (int, type(None))
#: A count over this is nonsense: sums of such would not be exact, if they could be told at all.
_MOST = 2**53

#: How long the id of a stream that ended well is not given to another exchange, in seconds.
STREAM_LINGER = 3.0
#: Of a body over this, in bytes, nothing is held for as long as an exchange may last.
SMALL = 64 * 1024
#: Statuses by which an engine says that it takes no more at the moment.
_BUSY = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class Services:
    """What every exchange needs. ``body_limit`` is in bytes, ``sse_comment_interval`` in seconds
    (None = never); ``overload_status`` is that of all refusals for want of room."""

    fleet: Fleet
    queue: Queue
    health: Health
    in_flight: InFlight[Running]
    aborter: Aborter
    lifecycle: Lifecycle
    shield: poison.QueryOfDeathGuard
    guard: Guard
    metrics: Metrics
    access_log: AccessLog
    time_slices: TimeSlices
    shedding: BodyRelease
    body_limit: int
    overload_status: int
    sse_comment_interval: float | None


class LiveExchange(CoroutineStepper):
    """One exchange at work. ``close`` gives back whatever was taken, in whatever phase it ended."""

    running: Running | None = None
    worker: Worker | None = None
    connection: Connection | None = None
    reader: Reader | None = None
    #: What it has in common with requests that belong on the same worker.
    key: str | None = None
    #: The model that its client named.
    model: str | None = None
    _sent = False
    #: Its connection is not to be used again, although the reply was whole.
    _doubtful = False
    _life: object = None
    #: Until when it may wait for a worker (monotonic); None: it did not have to.
    _until: float | None = None
    #: Over how long it takes, if that is limited.
    watch: Watch | None = None
    #: The request's, until it is let go of.
    body = b""
    #: Of the body, once it was needed.
    _known_digest: bytes | None = None
    _id_member: str | None = None
    _id_cuts: Sequence[tuple[int, int]] | None = None

    def __init__(self, client: Client, format: AnyFormat, endpoint: str, services: Services) -> None:
        self.client = client
        self._format: AnyFormat = format
        self._services = services
        metrics = services.metrics
        self.exchange = ExchangeRecord(format.name, endpoint, time.monotonic(), metrics.gap_bounds)
        metrics.started(self.exchange)

    def enter(self) -> None:
        """Be counted as open. Raises OutOfSockets, Draining and Overloaded."""
        if self.client.over_connection_limit:
            raise OutOfSockets("the gateway has as many connections as it takes; please try again")
        self._services.lifecycle.enter(self)

    def left(self, why: GatewayError) -> None:
        """The client is gone."""
        self._services.lifecycle.end(self, why)

    def aborted(self) -> None:
        """A client's abort call named this exchange, and no engine can be asked to end it."""
        self._services.lifecycle.end(self, Aborted("the request was aborted"))

    def limit(self, timeouts: Timeouts, seconds: float | None) -> None:
        """From now on it may take no longer than the limits of its route and ``seconds``, if given."""
        within = timeouts if seconds is None else timeouts.within(seconds)
        end = partial(self._services.lifecycle.end, self)
        self.watch = Watch(within, end, self._has_worker, asked=within is not timeouts)

    def _has_worker(self) -> bool:
        return self.worker is not None

    def claim(self, request: Any, projection: Projection) -> Running:
        """Take ids for the request, which came as ``body``, and become findable under the public ones.

        Raises Poisoned, before anything is taken.
        """
        in_flight, exchange, shield = self._services.in_flight, self.exchange, self._services.shield
        self._id_member, self._id_cuts = projection.id_member, projection.id_cuts
        if shield.armed:
            self._known_digest = self._digest()
            shield.check(self._known_digest, time.monotonic())
        ids = in_flight.claim(projection.ids, projection.ids_usable)
        self.model = projection.model
        exchange.stream = projection.stream
        exchange.public_id = ids.public[0]
        exchange.prompt_tokens = projection.prompt_tokens
        running = self.running = Running(self._format, request, ids, self.aborted, path=exchange.endpoint)
        running.named = bool(projection.ids) and not ids.private
        in_flight.enter(ids, running)
        return running

    def lease(self, running: Running, model: str | None, tried: Collection[Worker]) -> Worker:
        """Hold a worker that was not ``tried``. Raises what Fleet.lease does, and Overloaded while others
        wait in line for one."""
        exchange, capability, queue = self.exchange, running.format.capability, self._services.queue
        if queue.waiting and self._until is None and queue.has_line(capability, model):
            raise Overloaded("others wait for a worker; please try again")
        worker = self._services.fleet.lease(capability, model, tried, self.key)
        self.worker = worker
        self._life = worker.incarnation
        info = worker.offers(capability)
        models = models_of(worker, info) if info is not None else ()
        exchange.worker = worker.url
        exchange.model = model if model in models else models[0] if models and model is None else None
        exchange.attempts += 1
        exchange.on(Event.DISPATCH)
        return worker

    async def wait(self, model: str | None, tried: dict[Worker, object]) -> None:
        """Stand in line until there is a worker for this request, to be leased at once.

        Of ``tried``, what is another process by then is forgotten. Raises what Queue.wait does.
        """
        queue = self._services.queue
        if self._until is None:
            self._until = queue.deadline()
        await queue.wait((self._format.capability, model), tried, size=len(self.body), until=self._until)
        for worker in tried.keys() - excluded(tried):
            del tried[worker]

    def unlease(self, worker: Worker, error: GatewayError) -> object:
        """Let go of a worker that provably did not take the request, because of ``error``. Returns which life
        of it was asked."""
        self.exchange.on(Event.RETRY)
        self._sent = False
        self.worker = None
        if self.watch is not None:
            self.watch.unsent()
        if self.running is not None:
            self.running.worker = None
        if self.exchange.request_bytes > SMALL:
            self._services.shedding.drop(self)
        self._services.fleet.release(worker)
        self._services.health.suspect(worker, refused=isinstance(error, ConnectFailed))
        return self._life

    def sending(self, running: Running, connection: Connection) -> None:
        """From now on the worker may have the request."""
        self.connection = connection
        running.worker = self.worker
        self.exchange.dispatched_at = time.monotonic()
        self._sent = True
        if self.watch is not None:
            self.watch.sent()
        if self.exchange.request_bytes > SMALL:
            self._services.shedding.add(self)

    def shed(self) -> Iterator[None] | None:
        """Let go of the request's body, in steps; None: another worker may have to be sent it."""
        connection = self.connection
        if connection is None or not connection.reached_worker:
            return None
        return self._shed()

    def _shed(self) -> Iterator[None]:
        if self._services.shield.on and self._known_digest is None:
            body, cuts = self._known_by()
            self._known_digest = yield from poison.digest_in_steps(body, cuts)
        self.body = b""
        running, format = self.running, self._format
        if running is not None and isinstance(format, ReleasesBody):
            running.request = format.without_body(running.request)

    def read(self, running: Running, head: ReplyHead) -> Reader:
        """The reader for the reply with this head."""
        assert self.worker is not None, "who replies was leased"
        if head.status in _BUSY:
            self._services.health.refused(self.worker, head.status, header(head.headers, b"retry-after"))
        view = self.worker.view(self._format.name)
        reader = self.reader = self._format.reader(running.request, view, running.ids, head)
        return reader

    def committed(self, head: ReplyHead) -> None:
        """The client is given this status."""
        self.exchange.committed = True
        self.exchange.status = head.status

    def commit(self, head: ReplyHead, headers: Headers) -> None:
        """Start the reply downstream."""
        self.committed(head)
        self.client.start(head.status, headers)

    def saw(self, tokens: int) -> None:
        """``tokens`` are known to have been generated so far."""
        now = time.monotonic()
        if tokens <= _MOST:
            self.exchange.saw_tokens(tokens, now)
        if self.worker is not None:
            self.worker.last_reply_at = now

    def close(self, error: GatewayError | None) -> None:
        """Give everything back and record the end; ``error`` is what ended it, None: the reply was whole."""
        services, exchange = self._services, self.exchange
        self.client.ignore_disconnect()
        if self.watch is not None:
            self.watch.stop()
        services.lifecycle.leave(self)
        if exchange.request_bytes > SMALL:
            services.shedding.drop(self)
        try:
            if self.reader is not None:
                self._note_reply(self.reader)
        except (AttributeError, TypeError, GatewayError):
            log.exception("a reader of the format %s broke its contract", self._format.name)
        finally:  # whatever else a reader raises
            if self.worker is not None:
                self._close_upstream(self.worker, error)
            if self.running is not None:
                self._free(self.running, error)
            exchange.end(Event.FINISH if error is None else _event_of(error), time.monotonic(), error)
            services.metrics.ended(exchange)
            services.access_log.record(exchange)
        if error is not None and error.source is Source.UPSTREAM:
            log.info("%s at %s: %s%s", error.code, exchange.worker, error.message, _cause(error))
        # An engine whose inner process died may still say so itself, with an error of its own making.
        if exchange.ending is Ending.INCOMPLETE or exchange.reply_error == "internal":
            self._accuse()

    def _note_reply(self, reader: Reader) -> None:
        self._doubtful = True  # unless all of it could be read
        facts = reader.facts
        _note(self.exchange, facts)
        status = facts.error_status
        if status in _BUSY and self.worker is not None:
            self._services.health.refused(self.worker, status or 0, None)
        # An engine was seen to break the connection of such a stream 2 s later, whatever used it by then.
        self._doubtful = self.exchange.stream and status is not None

    def _close_upstream(self, worker: Worker, error: GatewayError | None) -> None:
        connection = self.connection
        if connection is not None:
            if error is None and not self._doubtful:
                worker.pool.give_back(connection)
                worker.last_reply_at = time.monotonic()
            else:
                connection.close()
        self._services.fleet.release(worker)
        if error is not None and isinstance(error, UpstreamIncomplete | UpstreamMalformed):
            self._services.health.suspect(worker, refused=False)

    def _free(self, running: Running, error: GatewayError | None) -> None:
        in_flight = self._services.in_flight
        in_flight.leave(running.ids, running)
        # Else the two hold each other, and the request's body, until the garbage collector comes by.
        running.close = _nothing
        if self._sent and error is not None and self.worker is not None:
            self._services.aborter.left(running, self.worker)
        elif self._sent and self.exchange.stream and running.named:
            # An engine was seen to abort, 2 s after a stream had ended, whatever ran under its id by then or
            # under an id that begins with it: nobody else gets the id before.
            loop = asyncio.get_running_loop()
            loop.call_later(STREAM_LINGER, in_flight.release, running.ids)
        else:
            in_flight.release(running.ids)

    def _accuse(self) -> None:
        """Tell the shield of a body whose reply broke off; its worker may be dying of it."""
        shield = self._services.shield
        if shield.on:
            shield.broke(self._digest(), self._life, time.monotonic())

    def _digest(self) -> bytes:
        """Tells the request's body from others, whatever ids the client gave to it this time."""
        if self._known_digest is not None:
            return self._known_digest
        body, cuts = self._known_by()
        return poison.digest(body, cuts)

    def _known_by(self) -> tuple[bytes, Sequence[tuple[int, int]]]:
        """The body, and where an id of its client is to be left out of it."""
        member, cuts = self._id_member, self._id_cuts
        if cuts is not None:
            return self.body, cuts
        return self.body if member is None else remove_member(self.body, member), ()


def _nothing() -> None:
    """To end what has ended."""


def _cause(error: GatewayError) -> str:
    """What is behind a failure, for the log. Only the system's own words: others may quote a reply."""
    cause = error.cause
    if cause is None:
        return ""
    text = f": {cause}" if isinstance(cause, OSError) else ""
    return f" ({type(cause).__name__}{text})"


def _note(exchange: ExchangeRecord, facts: ReplyFacts) -> None:
    """What the reader made of the reply. Raises TypeError, and takes nothing, where a count is none."""
    if not (isinstance(facts.prompt_tokens, _COUNT) and isinstance(facts.cached_tokens, _COUNT)):
        raise TypeError("the token counts of a reply are not numbers")
    if facts.prompt_tokens is not None and 0 <= facts.prompt_tokens <= _MOST:
        exchange.prompt_tokens = facts.prompt_tokens
    if facts.cached_tokens is not None and 0 <= facts.cached_tokens <= _MOST:
        exchange.cached_tokens = facts.cached_tokens
    exchange.finish_reasons = tuple(facts.finish_reasons)
    exchange.ending = facts.ending
    exchange.routing_data = facts.routing_data
    if facts.error_status is not None:
        exchange.reply_error = error_type_of(facts.error_status)


def _event_of(error: GatewayError) -> Event:
    return Event.CANCEL if isinstance(error, Cancelled | Aborted) else Event.FAIL


def public_id_line(ids: Ids) -> list[tuple[bytes, bytes]]:
    """``x-request-id`` with the id the client knows, if a header can hold it, blanks at its ends and all."""
    public = ids.public[0]
    if not 0 < len(public) <= 1024 or public[0] == " " or public[-1] == " ":
        return []
    if public.isascii() and public.isprintable():
        return [(b"x-request-id", public.encode())]
    return []
