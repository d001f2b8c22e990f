"""One exchange while it runs: everything it has taken, and how all of it is given back.

Owns: the record, the ids, the attempt, the deadlines and the request of one exchange. Must never enter: a
dialect, ASGI, the order of the phases.

One class, because ``close`` gives back what all the other methods take.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from gateway.downstream.client import Client
from gateway.errors import (
    Aborted,
    Cancelled,
    ConnectFailed,
    Draining,
    GatewayError,
    Overloaded,
    Source,
    error_type_of,
)
from gateway.exchange import DISPATCH, FINISH, GENERATE, ExchangeEvent, ExchangeRecord
from gateway.fleet.queue import excluded
from gateway.fleet.roster import models_of
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.contract import Headers, Ids, Projection, ReplyFacts
from gateway.formats.json.splice import remove_member
from gateway.formats.optional import ReleasesBody
from gateway.formats.routing_hints import Hints
from gateway.limits import Timeouts
from gateway.loop.stepper import CoroutineStepper
from gateway.proxy.attempt import BUSY_STATUSES, Attempt
from gateway.proxy.deadlines import Deadlines
from gateway.proxy.query_of_death import STEP, digest, digest_in_steps
from gateway.proxy.services import Services
from gateway.upstream.connection import Connection

log = logging.getLogger(__name__)

_COUNT = (int, type(None))
#: A token count above this is nonsense: sums of such counts would not be exact as floating-point numbers.
_LARGEST_COUNT = 2**53

#: Seconds for which the client's own id of a completed stream stays reserved.
STREAM_LINGER = 3.0
#: A body above this size, in bytes, is released once the worker has received it.
SMALL_BODY = 64 * 1024

NO_IDS = Ids((), ())
NO_PROJECTION = Projection(stream=False)
NOTHING: frozenset[str | int] = frozenset()


class LiveExchange:
    """One exchange while it runs. ``close`` gives back everything it has taken, in whatever phase it ends.

    The in-flight index holds it under its public ids (gateway.proxy.in_flight.InFlightEntry).
    """

    #: The dispatch to the worker that has the request now; None before the first one and between two.
    attempt: Attempt | None = None
    #: Only if a limit or the client restricts how long the exchange may take.
    deadlines: Deadlines | None = None
    #: The request's body, b"" once it is released, and what its format made of it.
    body = b""
    request: Any = None
    #: Requests with the same key go to the same worker.
    routing_key: str | None = None
    #: Hash of the body without the client's id; b"" until it is needed.
    digest = b""
    #: Monotonic time until which it may be queued for a worker; 0: it was not queued.
    _queued_until = 0.0

    def __init__(
        self, client: Client, format: AnyFormat, endpoint: str, operation: str, services: Services
    ) -> None:
        self.client = client
        self.format: AnyFormat = format
        self.path = endpoint
        self.stepper = CoroutineStepper()
        self.services = services
        # Not class attributes: mypyc supports only constants of built-in types as their values.
        self.projection = NO_PROJECTION
        self.ids = NO_IDS
        #: Public ids and prompt numbers aborted before dispatch, for the worker that gets the exchange.
        self.aborted_before_dispatch: frozenset[str | int] = NOTHING
        metrics = services.metrics
        record = self.record = ExchangeRecord(format.name, endpoint, client.accepted_at, metrics.gap_bounds)
        record.operation = operation
        metrics.started(record)

    # -- how it is ended from outside

    def interrupt(self, reason: BaseException) -> None:
        """Raise ``reason`` where the handler waits."""
        self.stepper.interrupt(reason)

    def on_client_disconnect(self, reason: GatewayError) -> None:
        """End the exchange: the client has disconnected."""
        self.services.lifecycle.end(self, reason)

    def abort_locally(self) -> None:
        """End the exchange: an abort call named it, and no engine can be asked to end it."""
        self.services.lifecycle.end(self, Aborted("the request was aborted"))

    @property
    def aborted_entirely(self) -> bool:
        """True if all of its ids were aborted before dispatch, so that no worker may be sent it any more."""
        return self.aborted_before_dispatch.issuperset(self.ids.public)

    @property
    def worker(self) -> Worker | None:
        """The worker that has the request; None: no worker has it."""
        return None if self.attempt is None else self.attempt.worker

    @property
    def address(self) -> str | None:
        """The IP address of the process that has the request; None: no worker has it."""
        return None if self.attempt is None else self.attempt.connection.address

    # -- what the phases take

    def start_deadlines(self, timeouts: Timeouts, seconds: float | None) -> None:
        """Limit the exchange to ``timeouts``, and to ``seconds`` in all if the client asked for that."""
        within = timeouts if seconds is None else timeouts.within(seconds)
        expire = partial(self.services.lifecycle.end, self)
        self.deadlines = Deadlines(within, expire, from_client=within is not timeouts)

    def claim_ids(self) -> None:
        """Take ids for the request and become findable, and abortable, under the public ones."""
        in_flight, record, projection = self.services.in_flight, self.record, self.projection
        ids = self.ids = in_flight.claim(projection.ids, projection.ids_usable)
        record.stream = projection.stream
        record.public_id = ids.public[0]
        record.prompt_tokens = projection.prompt_tokens
        in_flight.enter(ids, self)

    def lease(self, tried: dict[Worker, object]) -> Worker:
        """Lease a worker that was not ``tried``.

        Raises the errors of Fleet.lease, and Overloaded while other requests are queued for such a worker.
        """
        record, queue, fleet = self.record, self.services.queue, self.services.fleet
        capability, model, longest = self.format.capability, self.projection.model, self.projection.longest
        if queue.waiting and not self._queued_until and queue.has_earlier(capability, model):
            raise Overloaded("other requests are queued for a worker; please try again")
        creator = None
        if self.projection.resource is not None:
            creator = self.services.resources.creator(self.projection.resource, time.monotonic())
        if creator is None:
            worker = fleet.lease(capability, model, tried, self.routing_key, longest)
        else:
            # No other worker has it. Its model need not be named, as it is that of its creator.
            others = tried.keys() | set(fleet.usable(capability)) - {creator}
            worker = fleet.lease(capability, model or creator.model(capability), others)
        info = worker.offers(capability)
        models = models_of(worker, info) if info is not None else ()
        record.worker = worker.url
        record.model = model if model in models else models[0] if models and model is None else None
        record.attempts += 1
        record.apply(DISPATCH)
        if self.deadlines is not None:
            self.deadlines.worker_leased()
        return worker

    async def wait_for_worker(self, tried: dict[Worker, object]) -> None:
        """Wait in the queue until there is a worker for this request, to be leased at once.

        Remove from ``tried`` each worker that is another process by then. Raises the errors of Queue.wait.
        """
        queue = self.services.queue
        if not self._queued_until:
            self._queued_until = queue.deadline()
        wanted = capability, model = self.format.capability, self.projection.model
        if self.record.model is None:  # it may end while it is queued, and is counted then
            self.record.model = self.services.fleet.model_for(*wanted)
        small = self.services.fleet.without_room(capability, model, self.projection.longest)
        excluding = {**tried, **{worker: worker.card for worker in small}} if small else tried
        await queue.wait(wanted, excluding, size=len(self.body), until=self._queued_until)
        for worker in tried.keys() - excluded(tried):
            del tried[worker]

    def start_attempt(self, worker: Worker, incarnation: object, connection: Connection) -> Attempt:
        """Record that ``worker`` may have the request from now on."""
        attempt = self.attempt = Attempt(worker, incarnation, connection)
        self.record.dispatched_at = attempt.sent_at
        if self.deadlines is not None:
            self.deadlines.request_sent()
        if self.record.request_bytes > SMALL_BODY:
            self.services.body_release.add(self)
        return attempt

    def give_up_worker(self, worker: Worker, error: GatewayError) -> None:
        """Give ``worker`` back: because of ``error`` it provably did not receive the request."""
        self.record.apply(ExchangeEvent.RETRY)
        if self.deadlines is not None:
            self.deadlines.worker_released()
        if self.record.request_bytes > SMALL_BODY:
            self.services.body_release.remove(self)
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            attempt.close(self.services.fleet, error)
        else:
            self.services.fleet.release(worker)
        if isinstance(error, ConnectFailed):
            self.services.health.report_refused(worker)

    def commit(self, status: int, headers: Headers) -> None:
        """Start the reply to the client."""
        self.record.committed = True
        self.record.status = status
        self.client.start(status, headers)

    def update_tokens(self, tokens: int) -> None:
        """Record that ``tokens`` tokens have been generated so far."""
        if tokens > self.record.tokens:
            now = time.monotonic()
            if self.attempt is not None:
                self.attempt.worker.vitals.last_reply_at = now
            if tokens <= _LARGEST_COUNT:
                self.record.update_tokens(tokens, now)

    def note_created(self, attempt: Attempt) -> None:
        """Remember that the worker has what its reply has just named."""
        facts = attempt.reader.facts
        if (id := facts.created) is not None:
            facts.created = None
            self.services.resources.add(id, attempt.worker, attempt.incarnation, time.monotonic())

    def public_id_line(self) -> list[tuple[bytes, bytes]]:
        """Return ``x-request-id`` with the id the client knows; [] if a header cannot hold exactly that."""
        public = self.ids.public[0]
        if not 0 < len(public) <= 1024 or public[0] == " " or public[-1] == " ":
            return []
        if public.isascii() and public.isprintable():
            return [(b"x-request-id", public.encode())]
        return []

    # -- its body

    async def digest_body(self) -> bytes:
        """Return what identifies the request's body; a long one is hashed in time slices."""
        if not self.digest:
            body, cuts = self.body_without_ids()
            if len(body) <= STEP:
                self.digest = digest(body, cuts)
            else:
                self.digest = await self.services.time_slices.run(digest_in_steps(body, cuts))
        return self.digest

    def body_without_ids(self) -> tuple[bytes, Sequence[tuple[int, int]]]:
        """Return the body, and the (start, end) of each part of it that holds an id of its client."""
        member, cuts = self.projection.id_member, self.projection.id_cuts
        if cuts is not None:
            return self.body, cuts
        return self.body if member is None else remove_member(self.body, member), ()

    def release_body(self) -> Iterator[None] | None:
        """Return steps that release the request's body; None: another worker may have to be sent it."""
        if self.attempt is None or not self.attempt.connection.reached_worker:
            return None
        return self._release_body()

    def _release_body(self) -> Generator[None, None, None]:
        if self.services.query_of_death.on and not self.digest:
            self.digest = yield from digest_in_steps(*self.body_without_ids())
        self.body = b""
        if isinstance(self.format, ReleasesBody):
            self.request = self.format.without_body(self.request)
            # The old hints refer to the request, and so to its body.
            self.projection = self.projection._replace(hints=Hints)

    # -- its end

    def close(self, error: GatewayError | None) -> None:
        """Give everything back and record the end. ``error`` is what ended it; None: a complete reply."""
        services, record, attempt = self.services, self.record, self.attempt
        self.client.ignore_disconnect()
        if self.deadlines is not None:
            self.deadlines.stop()
            self.deadlines = None
        services.lifecycle.leave(self)
        if record.request_bytes > SMALL_BODY:
            services.body_release.remove(self)
        try:
            if attempt is not None:
                self._note_reply(attempt)
        except (AttributeError, TypeError, GatewayError):
            log.exception("a reader of the format %s broke its contract", self.format.name)
        finally:  # whatever else a reader raises
            now = time.monotonic()
            if attempt is not None:
                attempt.close(services.fleet, error)
                outcome = attempt.outcome(error, relayed=record.operation != GENERATE)
                services.health.outliers.observe(
                    attempt.worker, attempt.incarnation, outcome, now - attempt.sent_at, self.routing_key
                )
            if self.ids.public:
                self._abort_or_release_ids(error)
            record.end(FINISH if error is None else _event_of(error), now, error)
            services.metrics.ended(record)
            services.access_log.record(record)
        if error is not None and error.source is Source.UPSTREAM:
            log.info("%s at %s: %s%s", error.code, record.worker, error.message, _cause(error))

    async def report_broken_reply(self) -> None:
        """Tell the query-of-death guard that a reply to the body broke off; its worker may be dying of it."""
        guard, attempt, now = self.services.query_of_death, self.attempt, time.monotonic()
        if guard.on and attempt is not None:
            with suppress(Draining):  # the ASGI server stopped meanwhile
                guard.reply_broke(await self.digest_body(), attempt.incarnation, now)

    def _note_reply(self, attempt: Attempt) -> None:
        attempt.reusable = False  # unless all of the facts can be read
        facts = attempt.reader.facts
        _note(self.record, facts)
        if facts.created is not None:
            self.note_created(attempt)
        self.record.reply_bytes += facts.unsent
        if facts.tokens > self.record.tokens:
            self.update_tokens(facts.tokens)  # those of events that came together with a malformed one
        status = facts.error_status
        if status in BUSY_STATUSES:
            self.services.health.report_busy(attempt.worker, status or 0, None)
        # An engine was seen to break the connection of a stream with an error event 2 s after its end,
        # whatever used the connection by then.
        attempt.reusable = not self.record.stream or status is None

    def _abort_or_release_ids(self, error: GatewayError | None) -> None:
        """Give the ids back. If an attempt ended with ``error``, its engine may still run the request: abort
        it there; the abort gives the ids back later."""
        in_flight, ids, attempt = self.services.in_flight, self.ids, self.attempt
        in_flight.leave(ids, self)
        if attempt is None:
            in_flight.release(ids)
        elif error is not None:
            self.services.aborter.abort_abandoned(self, attempt.worker)
        elif self.record.stream and self.projection.ids and not ids.private:
            # An engine was seen to abort, 2 s after a stream had ended, whatever ran by then under its id or
            # under an id that begins with it. So no other exchange gets the id before.
            asyncio.get_running_loop().call_later(STREAM_LINGER, in_flight.release, ids)
        else:
            in_flight.release(ids)


def _cause(error: GatewayError) -> str:
    """Return the cause of a failure for the log: texts of the system only, as others may quote a reply."""
    cause = error.cause
    if cause is None:
        return ""
    text = f": {cause}" if isinstance(cause, OSError) else ""
    return f" ({type(cause).__name__}{text})"


def _note(record: ExchangeRecord, facts: ReplyFacts) -> None:
    """Copy the facts of a reply. Raises TypeError, and copies nothing, if a token count is not a number."""
    if not (isinstance(facts.prompt_tokens, _COUNT) and isinstance(facts.cached_tokens, _COUNT)):
        raise TypeError("the token counts of a reply are not numbers")
    if facts.prompt_tokens is not None and 0 <= facts.prompt_tokens <= _LARGEST_COUNT:
        record.prompt_tokens = facts.prompt_tokens
    if facts.cached_tokens is not None and 0 <= facts.cached_tokens <= _LARGEST_COUNT:
        # No more than the prompt has, or hit rates would be over 1.
        cached, prompt = facts.cached_tokens, record.prompt_tokens
        record.cached_tokens = cached if prompt is None or cached < prompt else prompt
    record.finish_reasons = tuple(facts.finish_reasons)
    record.ending = facts.ending
    record.routing_data = facts.routing_data
    if facts.error_status is not None:
        record.reply_error = error_type_of(facts.error_status)


def _event_of(error: GatewayError) -> ExchangeEvent:
    return ExchangeEvent.CANCEL if isinstance(error, Cancelled | Aborted) else ExchangeEvent.FAIL
