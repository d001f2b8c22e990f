"""The process: its listening socket, its signals, its end.

Owns: uvicorn, the order of a shutdown, limits of the operating system. Must never enter: requests, routes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from gateway.app import Gateway, create_app
from gateway.lifecycle import Lifecycle
from gateway.listener.connection import ClientConnection
from gateway.security.configured import warnings_of
from gateway.security.tls import server_tls
from gateway.settings import Settings
from gateway.telemetry.logs import Logs

log = logging.getLogger(__name__)

#: Longer than the idle time of any client's pool we know of, in seconds.
KEEP_ALIVE = 75
#: How long replies that were cut may take to leave the process, in seconds.
FLUSH_SECONDS = 2


class PortTaken(Exception):
    """The address cannot be listened on; the message says which and why."""


class Server(uvicorn.Server):
    """uvicorn with our way to stop: not ready first, running exchanges next, listening last.

    The first SIGTERM or SIGINT drains for up to ``grace`` seconds, a second one ends at once.
    """

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, grace: float) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._grace = grace
        self._deadline: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called for a signal, between two steps of the loop; uvicorn's own would stop listening first."""
        if self._lifecycle.draining:
            self._deadline = float("-inf")
        self._lifecycle.drain()

    async def on_tick(self, counter: int) -> bool:
        """Called every 0.1 s; True ends the main loop."""
        await super().on_tick(counter)
        if not self._lifecycle.draining:
            return False
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            log.info("draining: %d exchanges are running", self._lifecycle.open_exchanges)
            self._deadline = now + self._grace
        return self._lifecycle.open_exchanges == 0 or now >= self._deadline

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cut what still runs, visibly, then close all."""
        if self._lifecycle.open_exchanges:
            log.warning("cutting %d exchanges", self._lifecycle.open_exchanges)
            await self._lifecycle.cut()
        await super().shutdown(sockets)


def run(settings: Settings) -> int:
    """Serve until told to stop; the process's exit code. Raises PortTaken."""
    listener = listen(settings.host, settings.port, settings.listen_backlog)
    with Logs(settings.log_level):
        raise_file_limit()
        with closing_on_error(listener):
            app = create_app(settings)
            config = server_config(app, settings)
        server = Server(config, app.lifecycle, settings.graceful_shutdown_timeout_secs)
        host, port = listener.getsockname()[:2]
        for warning in warnings_of(settings, host, port):
            log.warning("%s", warning)
        scheme = "http" if settings.ssl_certfile is None else "https"
        log.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)
        # What start-up made lives as long as the process; the collector need not look at it again.
        gc.collect()
        gc.freeze()
        server.run(sockets=[listener])
    return 0


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
    except OSError as error:
        raise PortTaken(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


def raise_file_limit() -> None:
    """Allow as many open sockets as the system lets this process have: two for each exchange."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        log.info("open files: limit raised from %d to %d", soft, hard)


def server_config(app: Gateway, settings: Settings) -> uvicorn.Config:
    """How uvicorn serves ``app``. Raises SettingsError for a certificate that cannot be used."""
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
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=FLUSH_SECONDS,
    )
    if tls is not None:
        # A context of our own: uvicorn's could not tell which file is at fault, nor be given new ones.
        config.load()
        config.ssl = tls.context
        app.keep_fresh(tls)
    return config
