"""Phases 4 and 5 of an exchange: lease a worker, and send it the request until one has begun its reply.

Owns: when a request is sent again. Must never enter: a dialect, the choice of a worker, the client's side.
"""

from __future__ import annotations

from gateway.errors import (
    Aborted,
    ConnectFailed,
    GatewayError,
    NotReceived,
    NoWorker,
    Overloaded,
    UnknownModel,
)
from gateway.fleet.worker import Worker
from gateway.formats.contract import UpstreamRequest
from gateway.loop.stepper import in_task
from gateway.proxy.live import LiveExchange
from gateway.upstream.connection import Connection
from gateway.upstream.encode import encode_head


class _Tried:
    """The workers that one exchange was sent to, none of which provably received it."""

    __slots__ = ("excluded", "failure", "needs_new_connection", "stale")

    def __init__(self) -> None:
        #: They get it no more, with the incarnation that had it.
        self.excluded: dict[Worker, object] = {}
        #: Those of ``excluded`` that had closed an idle connection: this says nothing about them.
        self.stale: list[Worker] = []
        #: They get it again, on a new connection.
        self.needs_new_connection: set[Worker] = set()
        self.failure: GatewayError | None = None

    def readmit_stale(self) -> bool:
        """Let the stale workers get the request again, on new connections; False if there are none."""
        for worker in self.stale:
            self.excluded.pop(worker, None)
            self.needs_new_connection.add(worker)
        readmitted = bool(self.stale)
        self.stale.clear()
        return readmitted

    def add(self, worker: Worker, incarnation: object, failure: ConnectFailed | NotReceived) -> None:
        """Note that ``worker`` did not receive the request."""
        self.failure = failure
        self.excluded[worker] = incarnation
        if isinstance(failure, NotReceived) and worker not in self.needs_new_connection:
            self.stale.append(worker)


async def dispatch(live: LiveExchange) -> None:
    """Send the request to a worker; to the next one if the first provably did not receive it.

    A worker that had closed an idle connection gets it again, on a new one, if no other is left or if the
    request has a routing key.
    """
    request: UpstreamRequest | None
    services, tried = live.services, _Tried()
    while True:
        worker = await _lease(live, tried)
        incarnation = worker.incarnation
        try:
            if (vocab_size := worker.card.values.vocab_size) is not None:
                await _check_vocabulary(live, vocab_size)
            # Made before there is a connection, which nobody would close if this failed.
            request = _request_for(live, worker)
            connection = None if worker in tried.needs_new_connection else worker.pool.take()
            if connection is None:
                connection = await in_task(worker.pool.connect(), Connection.close)
            attempt = live.start_attempt(worker, incarnation, connection)
            connection.send(encode_head(request, worker.pool.own_lines), request.body, request.rest)
            request = None  # it holds the body, which live.release_body is to release
            if live.aborted_before_dispatch:
                services.aborter.abort_early(live, worker)
            attempt.head = await connection.head()
            return
        except (ConnectFailed, NotReceived) as error:
            failure = error
        except BaseException:
            if live.attempt is None:  # an attempt gives its lease back itself
                services.fleet.release(worker)
            raise
        tried.add(worker, incarnation, failure)
        live.give_up_worker(worker, failure)
        if live.aborted_entirely:
            raise Aborted("the request was aborted")
        if live.routing_key is not None:
            tried.readmit_stale()


def _request_for(live: LiveExchange, worker: Worker) -> UpstreamRequest:
    request = live.format.upstream(live.request, worker.view(live.format.name), live.ids)
    if live.client.query:
        request = request._replace(target=request.target + live.client.query)
    return request


async def _check_vocabulary(live: LiveExchange, size: int) -> None:
    """Raise InvalidRequest for tokens that a model of ``size`` tokens does not have: they crash an engine."""
    steps = live.format.check_vocabulary(live.request, size)
    if steps is not None:
        await live.services.time_slices.run(steps)


async def _lease(live: LiveExchange, tried: _Tried) -> Worker:
    """Lease a worker that was not tried, or wait for one. Raises the last failure if there is no other."""
    looked = False
    while True:
        refusal: GatewayError | None = None
        try:
            return live.lease(tried.excluded)
        except UnknownModel:
            if looked:
                raise
        except (NoWorker, Overloaded) as error:
            if tried.readmit_stale():
                continue
            if not live.services.queue.accepts(error):
                raise tried.failure or error from None
            refusal = error
        # Not in the except blocks: compiled code keeps that exception current during the wait.
        if refusal is not None:
            await live.wait_for_worker(tried.excluded)
            if live.projection.resource is not None:
                return live.lease(tried.excluded)  # the queue does not know that only its creator counts
            # It may have to wait again: the worker that joined meanwhile may be too small for it.
        else:
            looked = True
            await in_task(live.services.health.look_again(), _ignore)


def _ignore(nothing: None) -> None:
    """There is nothing to give back of a call without a result."""
