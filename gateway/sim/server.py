"""A simulated engine within this process, as tests use it.

Owns: starting and stopping it, its log, its scripts. Must never enter: a dialect's rules.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from types import TracebackType

from gateway.sim.config import SimConfig
from gateway.sim.dialects import DIALECTS
from gateway.sim.engine import Engine
from gateway.sim.http1 import HttpServer
from gateway.sim.request_log import AbortCall, Arrival, Milestone, RequestLog
from gateway.sim.script import Script

_BACKLOG = 4096


class SimServer:
    """One simulated engine on a socket of this process. Use it as an async context manager.

    ``kind`` is one of DIALECTS; with ``tls`` it speaks https; ``make_log`` creates its log, given how
    many requests to remember. ``exit_code`` is set when the engine has ended by itself: after ``terminate``,
    or because of an input that crashes the real engine.
    """

    def __init__(
        self,
        kind: str,
        config: SimConfig | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        make_log: Callable[[int], RequestLog] = RequestLog,
    ) -> None:
        if kind not in DIALECTS:
            raise ValueError(f"{kind!r} is not one of {', '.join(DIALECTS)}")
        self.kind = kind
        self.config = config or SimConfig()
        self._tls = tls
        self._make_log = make_log
        self.exit_code: int | None = None
        self._port = self.config.port
        self._listener: asyncio.Server | None = None
        self._http: HttpServer | None = None
        self._engine: Engine | None = None

    def __repr__(self) -> str:
        return f"<SimServer {self.kind} {self.url} running={self.running} waiting={self.waiting}>"

    # Start and stop.

    async def __aenter__(self) -> SimServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen. After ``stop`` or ``kill`` a new engine starts on the same port, with an empty log."""
        self.exit_code = None
        log = self._make_log(self.config.log_limit)
        engine = DIALECTS[self.kind].make(self.config, log)
        engine.on_exit = self._exit
        engine.on_stop_listening = self._close_listener
        self._engine = engine
        self._http = HttpServer(engine, log, self.config.keep_alive)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._http.protocol,
            sock=_listening(self.config.host, self._port),
            backlog=_BACKLOG,
            ssl=self._tls,
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the listener and every connection."""
        await self._end(lambda http: http.close(at_once=True))

    async def kill(self) -> None:
        """Behave like a killed process: every connection ends with RST, nothing listens any more."""
        await self._end(lambda http: http.reset())

    def close_idle(self) -> None:
        """Close every connection without a request, as happens after ``keep_alive`` seconds."""
        if self._http is not None:
            self._http.close_idle()

    def terminate(self) -> None:
        """Do what SIGTERM does to this engine; ``await exited()`` waits for its end."""
        self.engine.terminate()

    async def exited(self) -> int:
        """Wait until the engine has ended by itself and return its exit code."""
        await self.request_log.until(lambda: self.exit_code is not None)
        assert self.exit_code is not None
        return self.exit_code

    # State.

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the simulated engine was never started")
        return self._engine

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        """The base URL, without a trailing slash."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http{'' if self._tls is None else 's'}://{host}:{self._port}"

    @property
    def generate_url(self) -> str:
        """The URL of the engine's generate route."""
        return self.url + DIALECTS[self.kind].path

    @property
    def request_log(self) -> RequestLog:
        return self.engine.log

    @property
    def log(self) -> list[Arrival]:
        """The generate requests, oldest first."""
        return list(self.request_log.generates)

    @property
    def all_requests(self) -> list[Arrival]:
        """Every request, health checks too, oldest first."""
        return list(self.request_log.all)

    @property
    def aborts(self) -> list[AbortCall]:
        """Calls of the engine's abort routes, oldest first."""
        return list(self.request_log.aborts)

    @property
    def running(self) -> int:
        """The number of running sequences."""
        return len(self.engine.scheduler.running)

    @property
    def waiting(self) -> int:
        """The number of queued sequences."""
        return self.engine.scheduler.queued

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._http.connections) if self._http is not None else 0

    @property
    def accepted(self) -> int:
        """The number of connections accepted so far."""
        return self._http.accepted if self._http is not None else 0

    # Waiting. Each method returns the ``count``-th generate request that reached the milestone, as soon as
    # there is one.

    async def arrived(self, count: int = 1) -> Arrival:
        """Wait until ``count`` requests were read completely (or cut off before, by a script)."""
        return await self.request_log.wait(Milestone.ARRIVED, count)

    async def streaming(self, count: int = 1) -> Arrival:
        """Wait until ``count`` streams have sent their first event."""
        return await self.request_log.wait(Milestone.STREAMING, count)

    async def finished(self, count: int = 1) -> Arrival:
        """Wait until ``count`` requests were answered completely."""
        return await self.request_log.wait(Milestone.FINISHED, count)

    async def aborted(self, count: int = 1) -> Arrival:
        """Wait until ``count`` generations were stopped, by an abort call or because the client
        disconnected.
        """
        return await self.request_log.wait(Milestone.ABORTED, count)

    async def client_gone(self, count: int = 1) -> Arrival:
        """Wait until the clients of ``count`` requests have disconnected."""
        return await self.request_log.wait(Milestone.CLIENT_GONE, count)

    async def abort_called(self, count: int = 1) -> AbortCall:
        """Wait for ``count`` abort calls and return the last of them."""
        await self.until(lambda: len(self.request_log.aborts) >= count)
        return self.aborts[count - 1]

    async def idle(self) -> None:
        """Wait until nothing runs and nothing is queued."""
        await self.until(lambda: not self.running and not self.waiting)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; it is evaluated whenever something above changes."""
        await self.request_log.until(condition)

    # Scripts.

    def behave(self, *scripts: Script, times: int = 1, path: str | None = None) -> None:
        """Answer the next requests by these scripts in order, the list repeated ``times`` times.

        ``path`` is the route they are for, by default the engine's generate route. Requests after the last
        script are answered as usual.
        """
        route = (path or DIALECTS[self.kind].path).encode()
        self.engine.scripts_for(route).extend(scripts * times)

    # Shutdown.

    def _exit(self, code: int) -> None:
        self.exit_code = code
        self._close_listener()
        if self._http is not None:
            if code:
                self._http.reset()
            else:
                self._http.close()
        self.engine.stop()
        self.request_log.changed()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def _end(self, close: Callable[[HttpServer], None]) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        if self._engine is not None:
            self._engine.stop()
        if self._http is not None:
            open_now = self._http.connections
            close(self._http)
            await self.request_log.until(lambda: not open_now)
        if listener is not None:
            await listener.wait_closed()


def _listening(host: str, port: int) -> socket.socket:
    """Return a bound socket. The port of an engine that just ended can be used again."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
