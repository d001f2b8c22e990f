"""The process: its listening socket, its signals, its end.

Owns: uvicorn, the order of a shutdown, limits of the operating system. Must never enter: requests, routes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import uvicorn

from gateway.app import Gateway, create_app
from gateway.lifecycle import Lifecycle
from gateway.listener.connection import ClientConnection
from gateway.listener.limits import ROOM
from gateway.multi.frames import Verb
from gateway.multi.lines import PatientLines
from gateway.multi.locks import WriteLocks
from gateway.multi.port import Port
from gateway.multi.siblings import Siblings
from gateway.multi.supervisor import Supervisor
from gateway.security.configured import warnings_of
from gateway.security.tls import server_tls
from gateway.settings import Settings
from gateway.telemetry.logs import Logs

log = logging.getLogger(__name__)

#: New objects after which the collector looks for cycles among them, which then takes a few milliseconds.
_YOUNG_OBJECTS = 10_000

#: Files that a process has open beside its connections: logs, the listener, the store, probes, aborts.
SPARE_FILES = 128
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
#: How long clients that were accepted a moment ago have to send a request, and be told to go elsewhere, where
#: a close would look as if it had been lost, in seconds.
LAST_WORDS = 0.1
#: Open files without which it is not worth starting, and for each of several processes, its channel and its
#: listening socket among them.
LEAST_FILES, FILES_PER_PROCESS = 64, 4
#: How long replies that were cut may take to leave the process, in seconds.
FLUSH_SECONDS = 2


#: A folder that is no disk's.
MEMORY = "/dev/shm"


class PortTaken(Exception):
    """The address cannot be listened on; the message says which and why."""


class ProcessesImpossible(Exception):
    """This system cannot have several processes serve one port; the message says what it lacks."""


class TooFewFiles(Exception):
    """This process may not open as many files as it needs; the message says how many that are."""


class Server(uvicorn.Server):
    """uvicorn with our way to stop: not ready first, new exchanges next, then running ones, listening last.

    The first SIGTERM or SIGINT drains, after the lifecycle's delay, for up to ``grace`` seconds, a second one
    ends at once.
    """

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, grace: float) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._grace = grace
        self._deadline: float | None = None
        #: When new requests are refused; None: not leaving.
        self._drain_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called for a signal, between two steps of the loop; uvicorn's own would stop listening first."""
        if self._lifecycle.leaving:
            self._deadline = float("-inf")
            self._lifecycle.drain()
        else:
            self._lifecycle.stop()

    async def on_tick(self, counter: int) -> bool:
        """Called every 0.1 s; True ends the main loop."""
        await super().on_tick(counter)
        if not self._lifecycle.leaving:
            return False
        now = asyncio.get_running_loop().time()
        if not self._lifecycle.draining and not self._delayed(now):
            return False
        if self._deadline is None:
            log.info("draining: %s", self._running())
            self._deadline = now + self._grace
        return self._lifecycle.idle or now >= self._deadline

    def _running(self) -> str:
        exchanges, calls = self._lifecycle.open_exchanges, self._lifecycle.open_calls
        return f"{exchanges} exchanges and {calls} control calls are running"

    def _delayed(self, now: float) -> bool:
        """Whether those who send requests here have had the time to notice."""
        if self._drain_at is None:
            self._drain_at = now + self._lifecycle.delay
            log.info("leaving: requests are taken for another %g s", self._lifecycle.delay)
        if now >= self._drain_at:
            self._lifecycle.drain()
        return self._lifecycle.draining

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cut what still runs, visibly, then close all."""
        self._lifecycle.drain()
        if not self._lifecycle.idle:
            log.warning("cut: %s", self._running())
            await self._lifecycle.cut()
        self._stop_listening(sockets or ())
        await asyncio.sleep(LAST_WORDS)
        await super().shutdown(sockets)

    def _stop_listening(self, sockets: Iterable[socket.socket]) -> None:
        """Take no connection any more: a new one would wait in vain from now on."""
        for server in self.servers:
            server.close()
        for listener in sockets:
            listener.close()
        self.servers = []


class MemberServer(Server):
    """One process of several. It drains and ends when the supervisor says so, which signals are meant for;
    once the supervisor is gone it does by itself what that would have it do.

    Until all processes are done it answers what comes, as new connections go to any of them.
    """

    def __init__(
        self, config: uvicorn.Config, lifecycle: Lifecycle, grace: float, siblings: Siblings
    ) -> None:
        super().__init__(config, lifecycle, grace)
        self._siblings = siblings
        self._told: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._siblings.tell(Verb.SERVING)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to the whole group is one signal, the supervisor's."""
        if self._siblings.lost:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        over = await super().on_tick(counter)
        siblings = self._siblings
        if siblings.lost:
            if self.servers:
                log.error("the supervisor is gone: running exchanges are finished, no others begun")
                self._stop_listening(())
            return over
        running = self._lifecycle.open_exchanges + self._lifecycle.open_calls
        if self._lifecycle.draining and running != self._told:
            self._told = running
            siblings.tell(Verb.OPEN, b"%d" % running)
        return siblings.ended


def run(settings: Settings) -> int:
    """Serve until told to stop; the process's exit code. Raises PortTaken, ProcessesImpossible and
    TooFewFiles."""
    check_file_limit(settings.processes)
    if settings.processes > 1:
        return run_several(settings)
    listener = listen(settings.host, settings.port, settings.listen_backlog)
    with Logs(settings.log_level, most=settings.log_lines_per_minute) as logs:
        raise_file_limit()
        with closing_on_error(listener):
            app = create_app(settings)
            logs.flood.held_back = partial(app.hit, "log_lines")
            config = server_config(app, settings)
        server = Server(config, app.lifecycle, settings.graceful_shutdown_timeout_secs)
        _tell_room(settings)
        _tell_address(listener, settings)
        _spare_collector()
        server.run(sockets=[listener])
    return 0


def run_several(settings: Settings) -> int:
    """Serve with several processes, which this one starts and watches; otherwise as ``run``."""
    if not (hasattr(socket, "SO_REUSEPORT") and hasattr(os, "fork")):
        source = settings.source_of("processes")
        raise ProcessesImpossible(f"{source}: only one process can listen on a port of this system")
    listener = listen(settings.host, settings.port, settings.listen_backlog)
    locks = WriteLocks()
    lines = PatientLines(STANDARD_ERROR, locks.of(STANDARD_ERROR))
    with (
        Logs(settings.log_level, most=settings.log_lines_per_minute, writer=lines),
        closing_on_error(listener),
        with_shared_store(settings) as settings,
    ):
        raise_file_limit()
        # Only to find out, once and here, whether it can be made.
        server_config(create_app(settings), settings)
        _tell_room(settings)
        _tell_address(listener, settings)
        supervisor = Supervisor(
            settings.processes,
            settings.drain_delay_secs + settings.graceful_shutdown_timeout_secs,
            Port(listener, settings.listen_backlog),
            partial(_serve, settings, locks),
            lines,
        )
        _spare_collector()  # what is there now is shared by all processes as long as none of them touches it
        return supervisor.run()


@contextmanager
def with_shared_store(settings: Settings) -> Iterator[Settings]:
    """Settings by which several processes have one store where one process would keep it in its memory: a
    file that is gone when they are. Raises ProcessesImpossible."""
    if settings.discovery_backend != "memory":
        yield settings
        return
    with _folder(settings) as folder:
        file = str(Path(folder) / "workers.json")
        yield settings.model_copy(update={"discovery_backend": "file", "discovery_file": file})


def _folder(settings: Settings) -> TemporaryDirectory[str]:
    """In memory where the system can, which a container has even if nothing else of it can be written to."""
    try:
        return TemporaryDirectory(prefix="tito-gateway-", dir=MEMORY)
    except OSError:
        pass
    try:
        return TemporaryDirectory(prefix="tito-gateway-")
    except OSError as error:
        raise ProcessesImpossible(
            f"{settings.source_of('processes')}: the processes share a file, and neither {MEMORY} nor a"
            f" folder for temporary files (TMPDIR) can be written to: {error.strerror}"
        ) from error


def _serve(
    settings: Settings, locks: WriteLocks, listener: socket.socket, channel: socket.socket, again: bool
) -> int:
    """What each of several processes does; its exit code."""
    with Logs(
        settings.log_level,
        most=settings.log_lines_per_minute,
        lock=locks.of(STANDARD_ERROR),
        process=os.getpid(),
    ) as logs:
        siblings = Siblings(channel, again=again)
        app = create_app(settings, siblings=siblings, lock=locks.of(STANDARD_OUTPUT))
        logs.flood.held_back = partial(app.hit, "log_lines")
        grace = settings.graceful_shutdown_timeout_secs
        server = MemberServer(server_config(app, settings), app.lifecycle, grace, siblings)
        _spare_collector()
        server.run(sockets=[listener])
    return 0 if server.started else 1


def _tell_address(listener: socket.socket, settings: Settings) -> None:
    host, port = listener.getsockname()[:2]
    for warning in warnings_of(settings, host, port):
        log.warning("%s", warning)
    scheme = "http" if settings.ssl_certfile is None else "https"
    log.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)


@contextmanager
def closing_on_error(listener: socket.socket) -> Iterator[None]:
    """Give the port back if what should be served cannot be made."""
    try:
        yield
    except BaseException:
        listener.close()
        raise


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one. Raises PortTaken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(backlog)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise PortTaken(f"cannot listen on {host} port {port}: {why}") from error
    listener.setblocking(False)
    return listener


def check_file_limit(processes: int) -> None:
    """Raises TooFewFiles: with less, whatever fails first would say something else."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = LEAST_FILES + FILES_PER_PROCESS * processes
    if hard != resource.RLIM_INFINITY and hard < least:
        raise TooFewFiles(f"this process may have {hard} open files, and {least} are needed (ulimit -Hn)")


def raise_file_limit() -> None:
    """Allow as many open sockets as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        log.info("open files: limit raised from %d to %d", soft, hard)


def _tell_room(settings: Settings) -> None:
    """For how many clients there is room."""
    enough, wanted = most_connections(), settings.share(settings.max_connections)
    if enough is None:
        return
    if wanted is not None and wanted > enough:
        log.warning("open files: a process has no more than it needs for %d connections of clients", enough)
    else:
        log.info("a process takes up to %d connections of clients", wanted or enough)


def most_connections() -> int | None:
    """How many clients one process can serve at once: each may need a connection to a worker, too."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if files == resource.RLIM_INFINITY else max(1, (files - SPARE_FILES - ROOM) // 2)


def server_config(app: Gateway, settings: Settings) -> uvicorn.Config:
    """How uvicorn serves ``app``, to as many clients as there may be. Raises SettingsError for a certificate
    that cannot be used."""
    enough = most_connections()
    if enough is not None:
        app.limits = app.limits._replace(connections=min(app.limits.connections or enough, enough))
    tls = server_tls(settings)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=ClientConnection,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=[("server", "tito-gateway")],
        backlog=settings.listen_backlog,
        timeout_graceful_shutdown=FLUSH_SECONDS,
    )
    if tls is not None:
        # A context of our own: uvicorn's could not tell which file is at fault, nor be given new ones.
        config.load()
        config.ssl = tls.context
        app.keep_fresh(tls)
    return config


def _spare_collector() -> None:
    """Let the garbage collector look at nothing that lives as long as the process, and seldom at the rest.

    Nothing on the way of a request makes cycles, but a few dozen requests at once are some thousand objects,
    for which it would start again and again by its own settings.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
