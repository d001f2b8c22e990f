"""The process, or several of them: from the settings to a server that listens.

Owns: the listening socket, how uvicorn is set up, the garbage collector's settings. Must never enter: how it
ends, requests, routes.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn

from gateway.downstream.connection import ClientConnection
from gateway.prefork.locks import WriteLocks
from gateway.prefork.log_writer import LogWriter
from gateway.prefork.peers import Peers
from gateway.prefork.port import Port
from gateway.prefork.supervisor import Supervisor
from gateway.process.open_files import (
    check_file_limit,
    most_connections,
    open_files,
    quota_of,
    raise_file_limit,
    tell_room,
)
from gateway.process.shutdown import MemberServer, Server
from gateway.security.tls import server_tls
from gateway.settings import Settings
from gateway.telemetry.logs import Logs
from gateway.wiring.app import Gateway, create_app
from gateway.wiring.security import warnings_of

log = logging.getLogger(__name__)

#: New objects after which the collector looks for cycles among them, which then takes a few milliseconds.
_YOUNG_OBJECTS = 10_000
#: Bytes of the largest block, of an event or a body, that is not given back to the system when it is freed.
_LARGEST_KEPT = 8 * 1024 * 1024

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
#: How long replies that were cut may take to leave the process, in seconds.
FLUSH_SECONDS = 2
#: A folder that is no disk's.
MEMORY = "/dev/shm"


class PortTaken(Exception):
    """The address cannot be listened on; the message says which and why."""


class ProcessesImpossible(Exception):
    """This system cannot have several processes serve one port; the message says what it lacks."""


def run(settings: Settings) -> int:
    """Serve until told to stop; the process's exit code. Raises PortTaken, ProcessesImpossible and
    TooFewFiles."""
    check_file_limit(settings.processes)
    if settings.processes > 1:
        return run_several(settings)
    listener = listen(settings.host, settings.port, settings.listen_backlog)
    with Logs(settings.log_level, lines_per_minute=settings.log_lines_per_minute) as logs:
        raise_file_limit()
        with closing_on_error(listener):
            app = create_app(settings)
            logs.rate_limit.on_dropped(partial(app.hit, "log_lines"))
            config = server_config(app, settings)
        server = Server(config, app.lifecycle, settings.graceful_shutdown_timeout_secs)
        tell_room(settings.share(settings.max_connections))
        _tell_address(listener, settings)
        _spare_collector()
        _keep_memory()
        server.run(sockets=[listener])
    return 0


def run_several(settings: Settings) -> int:
    """Serve with several processes, which this one starts and watches; otherwise as ``run``."""
    if not (hasattr(socket, "SO_REUSEPORT") and hasattr(os, "fork")):
        source = settings.source_of("processes")
        raise ProcessesImpossible(f"{source}: only one process can listen on a port of this system")
    listener = listen(settings.host, settings.port, settings.listen_backlog)
    locks = WriteLocks()
    lines = LogWriter(STANDARD_ERROR, locks.of(STANDARD_ERROR))
    with (
        Logs(settings.log_level, lines_per_minute=settings.log_lines_per_minute, writer=lines),
        closing_on_error(listener),
        with_shared_store(settings) as settings,
    ):
        raise_file_limit()
        # Only to find out, once and here, whether it can be made.
        server_config(create_app(settings), settings)
        tell_room(settings.share(settings.max_connections))
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
        lines_per_minute=settings.log_lines_per_minute,
        lock=locks.of(STANDARD_ERROR),
        process=os.getpid(),
    ) as logs:
        peers = Peers(channel, again=again)
        app = create_app(settings, peers=peers, lock=locks.of(STANDARD_OUTPUT))
        logs.rate_limit.on_dropped(partial(app.hit, "log_lines"))
        grace = settings.graceful_shutdown_timeout_secs
        server = MemberServer(server_config(app, settings), app.lifecycle, grace, peers)
        _spare_collector()
        _keep_memory()
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


def server_config(app: Gateway, settings: Settings) -> uvicorn.Config:
    """How uvicorn serves ``app``, to as many clients as there may be. Raises SettingsError for a certificate
    that cannot be used."""
    files = open_files()
    if files is not None:
        enough = most_connections(files)
        app.limits = app.limits._replace(connections=min(app.limits.connections or enough, enough))
        app.fleet.quotas.limit(quota_of(files))
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


def _keep_memory() -> None:
    """Let the process keep what it frees, up to twice ``_LARGEST_KEPT``, rather than give it back at once.

    By itself the C library gives the end of its heap back whenever 128 KiB of it are free: what an event of
    that size takes then comes anew from the system, page by page, for several times of what it costs to fill
    it. Once a large block was freed it takes such blocks for usual (glibc's M_MMAP_THRESHOLD).
    """
    bytes(_LARGEST_KEPT)  # from the system, not touched, and freed
