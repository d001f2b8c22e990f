"""Serving, with one process or several: from the settings to a server that listens.

Owns: the listening socket, the configuration of uvicorn and of the garbage collector. Must never enter:
shutdown, requests, routes.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import uvicorn

from gateway.downstream.connection import ClientConnection
from gateway.prefork.id_table import IdTable
from gateway.prefork.locks import WriteLocks
from gateway.prefork.log_writer import LogWriter
from gateway.prefork.peers import Peers
from gateway.prefork.port import Port
from gateway.prefork.supervisor import Supervisor
from gateway.process.open_files import (
    check_file_limit,
    log_capacity,
    max_connections_for,
    open_files,
    quota_of,
    raise_file_limit,
    scarce_from,
)
from gateway.process.shared_folder import MEMORY, shared_folder
from gateway.process.shutdown import ProcessServer, Server
from gateway.settings import Settings
from gateway.telemetry.logs import Logs
from gateway.upstream.via import Via
from gateway.wiring.app import create_app
from gateway.wiring.gateway import Gateway
from gateway.wiring.security import warnings_of
from gateway.wiring.tls import server_tls

log = logging.getLogger(__name__)

#: New objects after which the garbage collector searches them for cycles, which takes a few milliseconds.
_YOUNG_OBJECTS = 10_000
#: Bytes of the largest block (an event or a body) that the process keeps when it is freed.
_LARGEST_KEPT = 8 * 1024 * 1024

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
#: Seconds that the ends of replies which were cut may take to leave the process.
FLUSH_SECONDS = 2


class PortTaken(Exception):
    """A failure to listen on an address; the message says which address, and why."""


class ProcessesImpossible(Exception):
    """A system that cannot run several processes on one port; the message says what is missing."""


def run(settings: Settings) -> int:
    """Serve until a stop signal, and return the exit code.

    Raises PortTaken, ProcessesImpossible and TooFewFiles.
    """
    check_file_limit(settings.processes)
    if settings.processes > 1:
        return run_several(settings)
    listener = listen(settings.host, settings.port, settings.listen_backlog)
    with Logs(settings.log_level, lines_per_minute=settings.log_lines_per_minute) as logs:
        raise_file_limit()
        with closing_on_error(listener):
            app = create_app(settings)
            logs.rate_limit.on_dropped(partial(app.limit_reached, "log_lines"))
            config = server_config(app, settings)
        server = Server(config, app.lifecycle, settings.graceful_shutdown_timeout_secs)
        log_capacity(settings.share(settings.max_connections))
        _log_address(listener, settings)
        _tune_garbage_collector()
        _keep_freed_memory()
        server.run(sockets=[listener])
    return 0


def run_several(settings: Settings) -> int:
    """Serve as ``run`` does, with several processes, which this one supervises."""
    if not (hasattr(socket, "SO_REUSEPORT") and hasattr(os, "fork")):
        source = settings.source_of("processes")
        raise ProcessesImpossible(f"{source}: only one process can listen on a port of this system")
    listener = listen(settings.host, settings.port, settings.listen_backlog)
    locks = WriteLocks()
    log_writer = LogWriter(STANDARD_ERROR, locks.of(STANDARD_ERROR))
    with (
        Logs(settings.log_level, lines_per_minute=settings.log_lines_per_minute, writer=log_writer),
        closing_on_error(listener),
        with_shared_store(settings) as settings,
    ):
        raise_file_limit()
        # Built once here so that a fault in the settings is reported before any process starts.
        server_config(create_app(settings), settings)
        log_capacity(settings.share(settings.max_connections))
        _log_address(listener, settings)
        supervisor = Supervisor(
            settings.processes,
            settings.drain_delay_secs + settings.graceful_shutdown_timeout_secs,
            Port(listener, settings.listen_backlog),
            partial(_serve, settings, _Shared(locks, IdTable(settings.processes), Via())),
            log_writer,
        )
        _tune_garbage_collector()  # frozen objects are not written to, so their memory stays shared
        return supervisor.run()


@contextmanager
def with_shared_store(settings: Settings) -> Iterator[Settings]:
    """Yield settings with a store that several processes can share.

    In place of the memory store it is a file store on a temporary file. Raises ProcessesImpossible.
    """
    if settings.discovery_backend != "memory":
        yield settings
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(shared_folder())
        except OSError as error:
            raise ProcessesImpossible(
                f"{settings.source_of('processes')}: the processes share a file, and neither {MEMORY} nor a"
                f" folder for temporary files (TMPDIR) can be written to: {error.strerror}"
            ) from error
        file = str(folder / "workers.json")
        yield settings.model_copy(update={"discovery_backend": "file", "discovery_file": file})


class _Shared(NamedTuple):
    """What is made before the processes are forked, and shared by them."""

    locks: WriteLocks
    ids: IdTable
    via: Via


def _serve(  # noqa: PLR0913 - what the processes share, and what is this one's
    settings: Settings,
    shared: _Shared,
    listener: socket.socket,
    channel: socket.socket,
    number: int,
    replacement: bool,
) -> int:
    """Serve as one of several processes, and return the exit code."""
    locks = shared.locks
    with Logs(
        settings.log_level,
        lines_per_minute=settings.log_lines_per_minute,
        lock=locks.of(STANDARD_ERROR),
        process=os.getpid(),
    ) as logs:
        peers = Peers(channel, shared.ids.of(number), first=number == 0, replacement=replacement)
        app = create_app(settings, peers=peers, lock=locks.of(STANDARD_OUTPUT), via=shared.via)
        logs.rate_limit.on_dropped(partial(app.limit_reached, "log_lines"))
        grace = settings.graceful_shutdown_timeout_secs
        server = ProcessServer(server_config(app, settings), app.lifecycle, grace, peers)
        _tune_garbage_collector()
        _keep_freed_memory()
        server.run(sockets=[listener])
    return 0 if server.started else 1


def _log_address(listener: socket.socket, settings: Settings) -> None:
    host, port = listener.getsockname()[:2]
    for warning in warnings_of(settings, host, port):
        log.warning("%s", warning)
    scheme = "http" if settings.ssl_certfile is None else "https"
    log.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)


@contextmanager
def closing_on_error(listener: socket.socket) -> Iterator[None]:
    """Close ``listener`` if the block raises."""
    try:
        yield
    except BaseException:
        listener.close()
        raise


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Return a listening TCP socket; port 0 means a free port. Raises PortTaken."""
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
    """Return uvicorn's configuration for ``app``, and fit the app's limits to the open-file limit.

    Raises SettingsError for a certificate that cannot be used.
    """
    files = open_files()
    if files is not None:
        app.limit_connections(max_connections_for(files), quota_of(files), scarce_from(files))
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
        # uvicorn's own context reports no file name when loading fails, and cannot be reloaded.
        config.load()
        config.ssl = tls.context
        app.keep_fresh(tls)
    return config


def _tune_garbage_collector() -> None:
    """Exempt all present objects from garbage collection, and collect less often.

    Handling a request creates no reference cycles, but a few dozen requests at once have some thousand
    objects, for which the collector would run again and again with its default threshold.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


def _keep_freed_memory() -> None:
    """Make the C library keep freed memory, up to twice ``_LARGEST_KEPT``.

    glibc returns the end of its heap to the system whenever 128 KiB of it are free. The memory for the next
    large event then comes from the system page by page, which takes several times as long as filling it.
    Freeing one large block raises the threshold (mallopt(3), M_MMAP_THRESHOLD: the threshold is dynamic).
    """
    bytes(_LARGEST_KEPT)  # allocated with mmap, never written to, and freed
