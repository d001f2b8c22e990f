"""A simulated engine whose generate and chat routes are answered by behaviours.

A closed connection is noticed at once, and the task that answers is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from gateway.loop.tasks import Tasks
from gateway.sim import AbortCall, Arrival, SimConfig, SimServer
from gateway.sim.engine import POST_OR_PUT
from gateway.sim.engine import Route as Served
from gateway.sim.exchange import Exchange
from gateway.sim.request_log import RequestLog
from tests.chaos.dialects import DONE, ROUTES, Route

Headers = tuple[tuple[bytes, bytes], ...]


class Call:
    """A client's request, and its reply.

    ``gone`` and ``gone_at`` are set if its connection is closed before the reply is complete; ``aborted`` is
    set when an abort names it. ``added`` are header lines of its reply.
    """

    added = b""

    def __init__(self, exchange: Exchange, route: Route) -> None:
        self.exchange = exchange
        self.request = exchange.arrival
        self.route = route
        self.id = route.id_of(exchange.arrival)
        self.wants_stream = b'"stream":true' in self.request.body.replace(b" ", b"")
        self.gone = asyncio.Event()
        self.gone_at: float | None = None
        self.aborted = asyncio.Event()
        self.events = 0
        #: The pieces of the reply's body.
        self.sent: list[bytes] = []

    def reply(self, body: bytes | None = None, status: int = 200, *, reason: str = "length") -> None:
        """Send a complete reply, by default the engine's own to such a request."""
        self.sent.append(self.route.reply(self.id, 3, reason) if body is None else body)
        self.exchange.send(status, self.sent[0], extra=self.added)

    def half(self, tokens: int = 3) -> None:
        """Send the head of a complete reply, and half of the body it announces."""
        body = self.route.reply(self.id, tokens, "length")
        self.exchange.promise(200, len(body), body[: len(body) // 2])

    def stream(self, events: int = 0) -> None:
        self.exchange.start(extra=self.added)
        for _ in range(events):
            self.event()

    def event(self, reason: str | None = None) -> None:
        self.events += 1
        self._piece(b"data: %b\n\n" % self.route.event(self.id, self.events, reason))

    def finish(self, reason: str = "length") -> None:
        self.event(reason)
        self._piece(DONE)
        self.exchange.end()

    def _piece(self, data: bytes) -> None:
        self.sent.append(data)
        self.exchange.write(data)

    def reset(self) -> None:
        self.exchange.cut(reset=True)


Behaviour = Callable[[Call], Coroutine[Any, Any, None]]


async def good(call: Call) -> None:
    """Answer at once, with a stream if the request asks for one."""
    if not call.wants_stream:
        return call.reply()
    call.stream(1)
    call.finish()


async def silent(call: Call) -> None:
    """Accept the request and send nothing."""
    await asyncio.Event().wait()


async def begun(call: Call, tokens: int = 3) -> None:
    """Send five events of a stream, or half of a unary reply; then nothing."""
    if call.wants_stream:
        call.stream(5)
    else:
        call.half(tokens)
    await silent(call)


class Worker(SimServer):
    """A worker of a ``kind``. ``behaviour`` answers each request that arrives from now on.

    ``calls`` are the requests of clients, ``faults`` the events that must not occur in a test.
    """

    def __init__(self, kind: str, behaviour: Behaviour = good) -> None:
        super().__init__(kind, SimConfig(fast_health=True), make_log=self._new_log)
        self.behaviour = behaviour
        self.calls: list[Call] = []
        self.faults: list[object] = []
        self._latest: dict[int, Call] = {}
        self._held: list[Exchange] = []
        self._tasks = Tasks()

    def requests_to(self, path: str) -> list[Arrival]:
        return [request for request in self.all_requests if request.target == path.encode()]

    async def start(self) -> None:
        """Listen; after ``die``, on the same port."""
        await super().start()
        self._latest.clear()
        for route in ROUTES:
            if route.kind == self.kind:
                self._serve(route, self.engine.routes.get(route.path.encode()))

    async def die(self, *, reset: bool = True) -> None:
        """Close the listening socket and all connections, as the system does for a process that is killed:
        with a reset only where there is unread input.
        """
        if not reset and self._http is not None:
            self._http.close()
        await self.kill()
        await self._tasks.stop()

    def hang(self) -> None:
        """Accept connections, and answer nothing until ``go_on``."""
        self.engine.handle = self._held.append  # type: ignore[method-assign, assignment]

    def go_on(self) -> None:
        """Answer what was received since ``hang``, and all that follows."""
        del self.engine.handle
        held, self._held = self._held, []
        for exchange in held:
            self.engine.handle(exchange)

    def _serve(self, route: Route, engines_own: Served | None) -> None:
        def answer(exchange: Exchange) -> None:
            if exchange.arrival.body == b"{}" and engines_own is not None:
                return engines_own.handler(exchange)  # a probe
            call, number = Call(exchange, route), exchange.arrival.connection
            if number in self._latest and not self._latest[number].exchange.done:
                self.faults.append("a request was received before the one before it was answered")
            self._latest[number] = call
            self.calls.append(call)
            task = self._tasks.spawn(self.behaviour(call), "behaviour")
            exchange.on_gone = lambda: self._lost(call, task)
            task.add_done_callback(self._done)

        self.engine.routes[route.path.encode()] = Served(POST_OR_PUT, answer)

    def _lost(self, call: Call, task: asyncio.Task[None]) -> None:
        call.gone_at = time.monotonic()
        call.gone.set()
        task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self.faults.append(fault)

    def _new_log(self, limit: int) -> RequestLog:
        log = RequestLog(limit)
        note = log.called

        def called(abort: AbortCall) -> None:
            note(abort)
            names = tuple(name.removeprefix("generate-tokens-") for name in abort.ids)
            for call in self.calls:
                if abort.everything or call.id.startswith(names):
                    call.aborted.set()

        log.called = called  # type: ignore[method-assign]
        return log


@asynccontextmanager
async def workers(kind: str, count: int = 2, behaviour: Behaviour = good) -> AsyncIterator[list[Worker]]:
    """Start ``count`` workers of a ``kind`` with the same behaviour, on free ports."""
    made = [Worker(kind, behaviour) for _ in range(count)]
    try:
        for worker in made:
            await worker.start()
        yield made
        assert [fault for worker in made for fault in worker.faults] == []
    finally:
        for worker in made:
            await worker.die()
