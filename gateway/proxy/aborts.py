"""Stopping exchanges at the engine: those whose client left, and those a client's abort call names.

Owns: sending a format's abort requests and reporting what became of them. Must never enter: a dialect, the
reason why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import GatewayError, UpstreamIncomplete
from gateway.fleet.worker import Worker
from gateway.formats.base import AnyFormat
from gateway.formats.contract import ANY_OF, Ids, UpstreamRequest, WorkerView
from gateway.formats.optional import AbortTarget, EngineId
from gateway.formats.worker_contract import WorkerInfo
from gateway.loop.tasks import Tasks
from gateway.proxy.in_flight import InFlight
from gateway.upstream.connection import Connection
from gateway.upstream.encode import encode_head

log = logging.getLogger(__name__)

#: A worker that has not answered an abort by then is taken not to have heard it, in seconds.
ABORT_TIMEOUT = 5.0
#: An engine may go on for this long under an id it was told to stop (it polls for a client's leaving every
#: 4 s), so the id is not given to another exchange before.
LINGER = 10.0
#: Abort requests under way at one worker at once: for all its exchanges, and for a single one (a batch has as
#: many ids as prompts). Thousands that leave together must not open thousands of connections.
SLOTS, LANES = 32, 4


class Running:
    """One exchange, findable by its public ids. ``close`` ends it without the engine's help.

    ``worker`` is the one that has it, None before it was sent to one. ``named``: its client chose the ids
    that its engine knows. ``early`` are public ids, and numbers of prompts, that were aborted so far: a
    worker that is given it later, because there was none or the one before provably did not get it, is told
    of them once it has it. ``path`` is that of its route.
    """

    # Not a dataclass: compiled, the method that it makes to begin one would still be run by the interpreter.
    def __init__(  # noqa: PLR0913 - what is known of it
        self,
        format: AnyFormat,
        request: Any,
        ids: Ids,
        close: Callable[[], None],
        worker: Worker | None = None,
        *,
        path: str = "",
    ) -> None:
        self.format = format
        self.request = request
        self.ids = ids
        self.close = close
        self.worker = worker
        self.named = False
        self.early: frozenset[str | int] = frozenset()
        self.path = path

    @property
    def over(self) -> bool:
        """Whether all of it was aborted, so that no worker may be given it any more."""
        return self.early.issuperset(self.ids.public)


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """What one worker made of an abort: how many exchanges it was about, and why it failed, if it did.

    ``worker`` is its URL, None for the exchanges that no worker had yet.
    """

    worker: str | None
    aborted: int
    error: str | None = None


class Aborter:
    """Sends aborts. One per app. ``timeout`` and ``linger`` are in seconds."""

    def __init__(
        self, running: InFlight[Running], *, timeout: float = ABORT_TIMEOUT, linger: float = LINGER
    ) -> None:
        self._running = running
        self._timeout = timeout
        self._linger = linger
        self._tasks = Tasks()

    def left(self, running: Running, worker: Worker) -> None:
        """The exchange ended unclean: tell its engine, then free its ids once the engine must be done."""
        self._tasks.spawn(self._stop_and_free(running, worker), "abort")

    def sent(self, running: Running, worker: Worker) -> None:
        """The worker has it now: tell it which prompts were aborted before."""
        self._tasks.spawn(self._stop_some(running, worker, _named_of(running.ids, running.early)), "abort")

    async def abort(self, target: AbortTarget, format: AnyFormat) -> Sequence[WorkerResult]:
        """Abort what ``target`` names among the exchanges of ``format`` and those of other routes at workers
        that speak it; each at its own worker.

        One result per worker concerned, and one for those that no worker has yet, within ``timeout``; an id
        nobody runs under is no failure.
        """
        names = _Names(target, format)
        found = self._running.all() if target.everything else self._named(names.ids)
        by_worker: dict[Worker, list[tuple[Running, Ids]]] = {}
        waiting = 0
        for running in dict.fromkeys(found):
            if not _speaks(running, format):
                continue
            ids = running.ids if target.everything else names.of(running)
            if ids is None:
                continue
            running.early = running.early.union(ids.parts or ids.public)
            if running.worker is None:
                waiting += 1
                # No engine has it; other prompts of its batch may go on.
                if running.over:
                    running.close()
            else:
                by_worker.setdefault(running.worker, []).append((running, ids))
        results = await asyncio.gather(*(self._abort_on(*item) for item in by_worker.items()))
        return [WorkerResult(None, waiting), *results] if waiting else results

    async def close(self, seconds: float) -> None:
        """Give the aborts under way ``seconds`` to be heard, then stop."""
        await self._tasks.wait(seconds)
        await self._tasks.stop()

    def _named(self, ids: Iterable[str]) -> Sequence[Running]:
        return [running for public in ids for running in self._running.find(public)]

    async def _abort_on(self, worker: Worker, group: Sequence[tuple[Running, Ids]]) -> WorkerResult:
        stops = (self._stop(running, worker, ids) for running, ids in group)
        try:
            async with asyncio.timeout(self._timeout):
                errors = [error for error in await asyncio.gather(*stops) if error is not None]
        except TimeoutError:
            errors = [f"no answer within {self._timeout:g} s"] * len(group)
        return WorkerResult(worker.url, len(group) - len(errors), errors[0] if errors else None)

    async def _stop(self, running: Running, worker: Worker, ids: Ids) -> str | None:
        requests = _requests(running, worker, ids)
        if not requests:
            if not ids.parts:
                running.close()
            return None
        error = await self._send_all(worker, requests)
        # It may have been found meanwhile that the worker, dead maybe, never got it.
        return error if running.worker is worker else None

    async def _stop_some(self, running: Running, worker: Worker, ids: Ids) -> None:
        if (error := await self._stop(running, worker, ids)) is not None:
            log.info("abort at %s not confirmed: %s", worker.url, error)

    async def _stop_and_free(self, running: Running, worker: Worker) -> None:
        try:
            if (error := await self._send_all(worker, _requests(running, worker, running.ids))) is not None:
                log.info("abort at %s not confirmed: %s", worker.url, error)
        finally:
            loop = asyncio.get_running_loop()
            loop.call_later(self._linger, self._running.release, running.ids)

    async def _send_all(self, worker: Worker, requests: Sequence[UpstreamRequest]) -> str | None:
        """Send a few at a time; the first reason why one was not accepted, if any."""
        slots = worker.abort_slots
        if slots is None:
            slots = worker.abort_slots = asyncio.Semaphore(SLOTS)
        waiting, errors = iter(requests), []

        async def lane() -> None:
            for request in waiting:
                async with slots, worker.quotas.aborts:
                    if (error := await send_quietly(worker, request, self._timeout)) is not None:
                        errors.append(error)

        await asyncio.gather(*(lane() for _ in range(min(LANES, len(requests)))))
        return errors[0] if errors else None


def _speaks(running: Running, format: AnyFormat) -> bool:
    """Whether an abort call of ``format`` may be about it: it is of that format, or of another route that is
    served by workers of several, and its own speaks that one."""
    if running.format is format:
        return True
    if format.capability not in running.format.capability.split(ANY_OF):
        return False
    return running.worker is None or running.worker.offers(format.capability) is not None


class _Unsent:
    """In place of the view of a worker, for what no worker has yet: one that speaks ``format``."""

    prefix = b""
    authorization: bytes | None = None

    def __init__(self, format: AnyFormat) -> None:
        self.info: WorkerInfo | None = WorkerInfo("", format.capability, usable=True)


class _Names:
    """What an abort call of ``format`` names, request by request."""

    def __init__(self, target: AbortTarget, format: AnyFormat) -> None:
        self._format: AnyFormat = format
        self._public = frozenset(target.ids)
        self._spelled: dict[str, list[EngineId]] = {}
        for one in target.engine_ids:
            self._spelled.setdefault(one.id, []).append(one)
        #: Public ids of all that it may be about.
        self.ids = dict.fromkeys((*target.ids, *self._spelled))

    def of(self, running: Running) -> Ids | None:
        """What it means of ``running``; None: nothing."""
        own = running.format is self._format
        names: set[str | int] = {id for id in running.ids.public if id in self._public}
        for id in running.ids.public:
            for spelled in self._spelled.get(id, ()):
                if own if spelled.path is None else not own and spelled.path == running.path:
                    names.add(id if spelled.part is None else spelled.part)
        ids = _named_of(running.ids, names) if names else None
        return self._known(running, ids) if ids is not None and ids.parts else ids

    def _known(self, running: Running, ids: Ids) -> Ids | None:
        """None where it has no such parts, and the whole where its one part is all of it."""
        worker, name = running.worker, running.format.name
        view: WorkerView = _Unsent(self._format) if worker is None else worker.view(name)
        requests = running.format.abort(view, running.request, ids)
        if not requests:
            return None
        whole = running.format.abort(view, running.request, running.ids)
        return running.ids if requests == whole else ids


def _named_of(ids: Ids, names: Collection[str | int]) -> Ids:
    """Those of ``ids`` that are named: of a batch, each prompt can be aborted by its own id or, where it has
    but a number, by that."""
    pairs = [pair for pair in zip(ids.public, ids.dispatch, strict=True) if pair[0] in names]
    if not pairs:
        return Ids(ids.public, ids.dispatch, tuple(sorted(name for name in names if isinstance(name, int))))
    return Ids(tuple(public for public, _ in pairs), tuple(dispatch for _, dispatch in pairs))


def _requests(running: Running, worker: Worker, ids: Ids) -> Sequence[UpstreamRequest]:
    return running.format.abort(worker.view(running.format.name), running.request, ids)


async def send_quietly(worker: Worker, request: UpstreamRequest, within: float) -> str | None:
    """Send a control request on the data plane's connections; None if it was accepted, else why not.

    ``within`` is in seconds.
    """
    try:
        async with asyncio.timeout(within):
            idle = worker.pool.take()
            if idle is not None:
                try:
                    return await _ask(worker, idle, request)
                except UpstreamIncomplete:
                    pass  # it had grown stale; an abort may safely be said twice
            return await _ask(worker, await worker.pool.connect(), request)
    except GatewayError as error:
        return error.message
    except TimeoutError:
        return f"no answer within {within:g} s"


async def _ask(worker: Worker, connection: Connection, request: UpstreamRequest) -> str | None:
    try:
        connection.send(encode_head(request, worker.address), request.body)
        head = await connection.head()
        while await connection.read():
            pass
    finally:
        worker.pool.give_back(connection)
    return None if head.status < 300 else f"answered {head.status}"
