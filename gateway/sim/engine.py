"""The base class of the simulated engines: routes, API keys, scripted answers, the log.

Owns: which handler answers which request. Must never enter: the shape of any engine's reply.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import msgspec

from gateway.sim.config import SimConfig
from gateway.sim.exchange import JSON, TEXT, Exchange
from gateway.sim.request_log import AbortCall, Arrival, Milestone, RequestLog
from gateway.sim.scheduler import Scheduler
from gateway.sim.script import BadScript, Drop, Half, Pace, Raw, Reply, Script, Silence, Timing, from_headers

Handler = Callable[[Exchange], None]
GET = frozenset({b"GET"})
POST = frozenset({b"POST"})
GET_OR_POST = GET | POST
POST_OR_PUT = frozenset({b"POST", b"PUT"})

encode = msgspec.json.encode


class Refusal(Exception):
    """An error answer. ``extra`` are header lines."""

    def __init__(
        self, status: int, body: bytes, content_type: bytes = JSON, extra: bytes = b"vary: Origin\r\n"
    ) -> None:
        super().__init__(body.decode("utf-8", "replace"))
        self.status = status
        self.body = body
        self.content_type = content_type
        self.extra = extra

    def answer(self, exchange: Exchange) -> None:
        exchange.send(self.status, self.body, self.content_type, extra=self.extra)


@dataclass(frozen=True, slots=True)
class Route:
    """A route. ``guard`` names the kind of key that is required, "" for none; each dialect defines its
    kinds.
    """

    methods: frozenset[bytes]
    handler: Handler
    guard: str = ""
    generate: bool = False


class Engine:
    """One simulated engine. A subclass fills ``routes`` and defines ``generate``, ``authorized`` and
    ``terminate``.
    """

    def __init__(self, config: SimConfig, log: RequestLog, scheduler: Scheduler) -> None:
        self.config = config
        self.log = log
        self.scheduler = scheduler
        self.routes: dict[bytes, Route] = {
            b"/_sim/log": Route(GET, self._show_log),
            b"/_sim/stats": Route(GET, self._show_stats),
        }
        self.scripts: dict[bytes, deque[Script]] = {}
        self.terminating = False
        #: Called with the exit code when the engine crashes, or when it has finished after ``terminate``.
        self.on_exit: Callable[[int], None] = lambda code: None
        #: Called when the engine stops accepting connections.
        self.on_stop_listening: Callable[[], None] = lambda: None
        self.loop = asyncio.get_running_loop()
        self._ready_at = self.loop.time() + config.start_up
        self._timing = Timing.of(config)
        scheduler.on_change = log.changed

    # Members that a dialect defines.

    def generate(self, exchange: Exchange, timing: Timing) -> None:
        """Answer a generate request."""
        raise NotImplementedError

    def authorized(self, exchange: Exchange, guard: str) -> bool:
        """Return True if the caller may use a route with this ``guard``."""
        raise NotImplementedError

    def terminate(self) -> None:
        """Do what the engine does on SIGTERM; ends with a call of ``on_exit``."""
        raise NotImplementedError

    # Members that the server calls.

    @property
    def starting(self) -> bool:
        return self.loop.time() < self._ready_at

    def accept(self, exchange: Exchange) -> bool:
        """Take the script for this request. Return False if the script acts before the body is read."""
        arrival = exchange.arrival
        route = self._route(exchange)
        if route is not None and route.generate and arrival.method in route.methods:
            arrival.generate = True
            self.log.generates.append(arrival)
        queue = self.scripts.get(_path(arrival.target)) if self.scripts else None
        if queue and not (arrival.generate and _is_probe(arrival)):
            exchange.script = queue.popleft()
        elif arrival.generate:
            try:
                exchange.script = from_headers(arrival.headers)
            except BadScript as error:
                exchange.script = Reply(status=400, body=encode({"error": {"message": str(error)}}))
        script = exchange.script
        if script is None:
            return True
        early = (isinstance(script, Drop) and script.early) or (isinstance(script, Silence) and script.unread)
        if early:
            self.log.record(arrival, Milestone.ARRIVED)
            if isinstance(script, Drop):
                exchange.cut(reset=script.reset)
        return not early

    def handle(self, exchange: Exchange) -> None:
        """Answer a request that was read completely."""
        if exchange.script is not None and not isinstance(exchange.script, Pace):
            self._act(exchange, exchange.script)
            return
        try:
            self._dispatch(exchange, self._route(exchange))
        except Refusal as refusal:
            refusal.answer(exchange)

    def note_abort(self, ids: tuple[str, ...], *, everything: bool, hit: int) -> None:
        """Record a call of an abort route."""
        self.log.called(AbortCall(ids, everything, hit, self.loop.time()))

    def scripts_for(self, path: bytes) -> deque[Script]:
        """Return the queue of scripts for requests to ``path``."""
        return self.scripts.setdefault(path, deque())

    def stop(self) -> None:
        """Generate no more tokens."""
        self.scheduler.stop()

    def timing(self, exchange: Exchange) -> Timing:
        """Return the pace of this request."""
        return self._timing.at(exchange.script) if isinstance(exchange.script, Pace) else self._timing

    def start_generate(self, exchange: Exchange) -> None:
        """Answer a generate request, after the start delay if one is set. The handler of the generate
        routes.
        """
        timing = self.timing(exchange)
        if timing.start_delay:
            self.scheduler.pacer.after(timing.start_delay, lambda: self._late(exchange, timing))
        else:
            self.generate(exchange, timing)

    def _route(self, exchange: Exchange) -> Route | None:
        target = exchange.arrival.target
        return self.routes.get(target) or self.routes.get(_path(target))

    def _late(self, exchange: Exchange, timing: Timing) -> None:
        if exchange.done:
            return
        try:
            self.generate(exchange, timing)
        except Refusal as refusal:
            refusal.answer(exchange)

    def _dispatch(self, exchange: Exchange, route: Route | None) -> None:
        guard = route.guard if route is not None else "api"
        if not self.authorized(exchange, guard):
            exchange.send(401, b'{"error":"Unauthorized"}', extra=b"")
        elif route is None:
            exchange.send(404, b'{"detail":"Not Found"}')
        elif exchange.arrival.method not in route.methods:
            allow = b"allow: %b\r\nvary: Origin\r\n" % b", ".join(sorted(route.methods))
            exchange.send(405, b'{"detail":"Method Not Allowed"}', extra=allow)
        else:
            route.handler(exchange)

    def _act(self, exchange: Exchange, script: Script) -> None:
        if isinstance(script, Reply):
            if script.delay:
                self.loop.call_later(script.delay, self._reply, exchange, script)
            else:
                self._reply(exchange, script)
        elif isinstance(script, Half):
            length = script.length if script.length is not None else 2 * len(script.body)
            exchange.promise(script.status, length, script.body, script.content_type.encode())
            exchange.cut(reset=script.reset)
        elif isinstance(script, Raw):
            exchange.connection.write(script.data)
            if script.close:
                exchange.cut()
        elif isinstance(script, Drop):
            exchange.cut(reset=script.reset)

    def _reply(self, exchange: Exchange, script: Reply) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in script.headers)
        exchange.send(script.status, script.body, script.content_type.encode(), extra=lines.encode("latin-1"))

    def _show_log(self, exchange: Exchange) -> None:
        arrivals = [
            {
                "method": arrival.method.decode(),
                "target": arrival.target.decode("latin-1"),
                "headers": [
                    [name.decode("latin-1"), value.decode("latin-1")] for name, value in arrival.headers
                ],
                "body_base64": base64.b64encode(arrival.body).decode(),
                "status": arrival.status,
                "events": arrival.events,
                **{milestone.value: getattr(arrival, milestone) for milestone in Milestone},
            }
            for arrival in self.log.generates
        ]
        exchange.send(200, encode(arrivals))

    def _show_stats(self, exchange: Exchange) -> None:
        stats: dict[str, Any] = {milestone.value: self.log.count(milestone) for milestone in Milestone}
        stats["running"] = len(self.scheduler.running)
        stats["waiting"] = self.scheduler.queued
        exchange.send(200, encode(stats))


@dataclass(frozen=True, slots=True)
class Dialect:
    """A kind of engine: the path of its generate route, and how to make one."""

    path: str
    make: Callable[[SimConfig, RequestLog], Engine]


def wall_clock() -> float:
    """Return the time in seconds since 1970."""
    return datetime.now(UTC).timestamp()


def _path(target: bytes) -> bytes:
    return target.partition(b"?")[0]


def _is_probe(arrival: Arrival) -> bool:
    """Return True for a generate request of two bytes: a probe's empty object; scripts are for clients."""
    return any(name.lower() == b"content-length" and value == b"2" for name, value in arrival.headers)


def query(exchange: Exchange) -> dict[str, str]:
    """Return the query parameters; of a repeated one the last value."""
    text = exchange.arrival.target.partition(b"?")[2].decode("latin-1")
    return {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}


def bearer(exchange: Exchange) -> bytes | None:
    """Return the bearer token that the caller sent, None without one."""
    for name, value in exchange.arrival.headers:
        if name.lower() == b"authorization":
            scheme, _, key = value.partition(b" ")
            return key.strip() if scheme.lower() == b"bearer" else None
    return None


def plain(exchange: Exchange, status: int, text: str = "") -> None:
    """Send a plain text answer; without text there is no content type either."""
    exchange.send(status, text.encode(), TEXT if text else b"")


def ok(exchange: Exchange, body: Any) -> None:
    """Send a 200 with ``body`` as JSON."""
    exchange.send(200, encode(body))
