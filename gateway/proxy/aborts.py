"""Sending aborts to engines: for exchanges whose client disconnected, and for those that an abort call names.

Owns: sending a format's abort requests and reporting the outcome. Must never enter: a dialect, the meaning of
an abort call (abort_names), the reason of an abort.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import GatewayError, UpstreamIncomplete
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ids, UpstreamRequest
from gateway.formats.optional import AbortTarget
from gateway.loop.tasks import Tasks
from gateway.proxy.abort_names import AbortNames, subset
from gateway.proxy.in_flight import InFlight, InFlightEntry
from gateway.upstream.connection import Connection
from gateway.upstream.encode import encode_head

log = logging.getLogger(__name__)

#: An abort that a worker has not answered after this time counts as failed, in seconds.
ABORT_TIMEOUT = 5.0
#: Seconds for which an aborted id stays reserved, as the engine may still run the request. (One of the
#: engines polls for disconnected clients every 4 s.)
LINGER = 10.0
#: The most abort requests at once for a single exchange: a batch has as many ids as prompts.
PER_EXCHANGE = 4


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The outcome of an abort call at one worker: how many exchanges it aborted, and the error, if any.

    ``worker`` is its URL, None for the exchanges that no worker had yet.
    """

    worker: str | None
    aborted: int
    error: str | None = None


class Aborter:
    """The sender of aborts of one application. ``timeout`` and ``linger`` are in seconds."""

    def __init__(
        self, in_flight: InFlight[InFlightEntry], *, timeout: float = ABORT_TIMEOUT, linger: float = LINGER
    ) -> None:
        self._in_flight = in_flight
        self._timeout = timeout
        self._linger = linger
        self._tasks = Tasks()

    def abort_abandoned(self, entry: InFlightEntry, worker: Worker) -> None:
        """Abort an exchange that ended early, and release its ids once the engine must be done with it."""
        # The task holds the format's request only: the entry holds the client's body as well.
        stop = self._abort_and_release(worker, entry.address, entry.format, entry.request, entry.ids)
        self._tasks.spawn(stop, "abort")

    def abort_early(self, entry: InFlightEntry, worker: Worker) -> None:
        """Tell ``worker``, which was just sent the exchange, which of its prompts were aborted before."""
        ids = subset(entry.ids, entry.aborted_before_dispatch)
        self._tasks.spawn(self._abort_some(entry, worker, ids), "abort")

    async def abort(self, target: AbortTarget, format: AnyFormat) -> Sequence[WorkerResult]:
        """Abort what ``target``, from a call in the dialect of ``format``, names; each at its own worker.

        Return one result per worker concerned, and one for the exchanges that no worker has yet, within
        ``timeout``. An id under which nothing runs is no failure.
        """
        names = AbortNames(target, format)
        if target.everything:
            found = list(self._in_flight.all())
        else:
            found = [entry for public in names.public_ids for entry in self._in_flight.find(public)]
        by_worker: dict[Worker, list[tuple[InFlightEntry, Ids]]] = {}
        undispatched = 0
        for entry in dict.fromkeys(found):
            ids = names.select(entry)
            if ids is None:
                continue
            entry.aborted_before_dispatch = entry.aborted_before_dispatch.union(ids.parts or ids.public)
            if entry.worker is None:
                undispatched += 1
                # No engine has it. Other prompts of its batch may go on.
                if entry.aborted_entirely:
                    entry.abort_locally()
            else:
                by_worker.setdefault(entry.worker, []).append((entry, ids))
        results = await asyncio.gather(*(self._abort_at(*item) for item in by_worker.items()))
        return [WorkerResult(None, undispatched), *results] if undispatched else results

    async def close(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the aborts under way, then stop."""
        await self._tasks.wait(seconds)
        await self._tasks.stop()

    async def _abort_at(self, worker: Worker, group: Sequence[tuple[InFlightEntry, Ids]]) -> WorkerResult:
        calls = (self._abort(entry, worker, ids) for entry, ids in group)
        try:
            async with asyncio.timeout(self._timeout):
                errors = [error for error in await asyncio.gather(*calls) if error is not None]
        except TimeoutError:
            errors = [f"no answer within {self._timeout:g} s"] * len(group)
        return WorkerResult(worker.url, len(group) - len(errors), errors[0] if errors else None)

    async def _abort(self, entry: InFlightEntry, worker: Worker, ids: Ids) -> str | None:
        requests = _requests(worker, entry.format, entry.request, ids)
        if not requests:
            if not ids.parts:
                entry.abort_locally()
            return None
        error = await self._send_all(worker, entry.address, requests)
        # Meanwhile it may have turned out that the worker, which may be dead, never received the exchange.
        return error if entry.worker is worker else None

    async def _abort_some(self, entry: InFlightEntry, worker: Worker, ids: Ids) -> None:
        if (error := await self._abort(entry, worker, ids)) is not None:
            log.info("abort at %s not confirmed: %s", worker.url, error)

    async def _abort_and_release(
        self, worker: Worker, address: str | None, format: AnyFormat, request: Any, ids: Ids
    ) -> None:
        try:
            error = await self._send_all(worker, address, _requests(worker, format, request, ids))
            if error is not None:
                log.info("abort at %s not confirmed: %s", worker.url, error)
        finally:
            asyncio.get_running_loop().call_later(self._linger, self._in_flight.release, ids)

    async def _send_all(
        self, worker: Worker, address: str | None, requests: Sequence[UpstreamRequest]
    ) -> str | None:
        """Send a few at a time. Return the first reason why one was not accepted, None: all were.

        They go to ``address``, as another machine may have the worker's name by now.
        """
        waiting, errors = iter(requests), []

        async def send_remaining() -> None:
            for request in waiting:
                async with worker.quotas.aborts, worker.quotas.of_fleet.aborts:
                    if (error := await send_quietly(worker, request, self._timeout, address)) is not None:
                        errors.append(error)

        await asyncio.gather(*(send_remaining() for _ in range(min(PER_EXCHANGE, len(requests)))))
        return errors[0] if errors else None


def _requests(worker: Worker, format: AnyFormat, request: Any, ids: Ids) -> Sequence[UpstreamRequest]:
    return format.abort(worker.view(format.name), request, ids)


async def send_quietly(
    worker: Worker, request: UpstreamRequest, within: float, address: str | None = None
) -> str | None:
    """Send a control request on a connection of the data plane. Return None if it was accepted, else why not.

    ``within`` is in seconds. ``address`` is the one that the worker's name had for the exchange that the
    request is about, None: any that it has now.
    """
    try:
        async with asyncio.timeout(within):
            idle = worker.pool.take() if address is None else worker.pool.take_to(address)
            if idle is not None:
                try:
                    return await _ask(worker, idle, request)
                except UpstreamIncomplete:
                    pass  # the connection was stale; an abort may safely be sent twice
            return await _ask(worker, await worker.pool.connect(address), request)
    except GatewayError as error:
        return error.message
    except TimeoutError:
        return f"no answer within {within:g} s"


async def _ask(worker: Worker, connection: Connection, request: UpstreamRequest) -> str | None:
    try:
        connection.send(encode_head(request, worker.pool.own_lines), request.body)
        head = await connection.head()
        while await connection.read():
            pass
    finally:
        worker.pool.give_back(connection)
    return None if head.status < 300 else f"answered {head.status}"
