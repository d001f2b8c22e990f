"""Accepting client connections over TLS.

Owns: accepting, and the limits on connections whose handshake is not complete. Must never enter:
certificates, requests, how a server ends.

The event loop's own server waits a minute for each handshake, for any number of them, and reports none: a
client that opens connections and sends nothing could use up all files that this process may open.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import cast

import uvicorn
from uvicorn.server import ServerState

from gateway.downstream.connection import Application
from gateway.downstream.limits import OVER_LIMIT_IDLE_SECONDS, RESERVED_CONNECTIONS
from gateway.loop.tasks import Tasks

log = logging.getLogger(__name__)

#: Connections that are accepted in one iteration of the event loop.
_AT_ONCE = 64
#: Seconds until connections are accepted again after this process could open no more files.
_SHORTAGE_PAUSE = 1.0


class Acceptor:
    """Accepts the connections of ``listener`` until it is closed.

    Each connection whose handshake is complete gets a protocol from ``make``. uvicorn sees it as one of its
    servers.
    """

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        app: Application,
        state: ServerState,
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._make = make
        self._app = app
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._handshakes = Tasks()
        self._resume_timer: asyncio.TimerHandle | None = None
        self._begin()

    def close(self) -> None:
        """Accept no more connections and close the listener."""
        if self._resume_timer is not None:
            self._resume_timer.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    async def wait_closed(self) -> None:
        """Drop the connections whose handshake is not complete."""
        await self._handshakes.stop()

    def _begin(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("cannot accept a connection of a client: %s", error.strerror)
                self._loop.remove_reader(self._listener)
                self._resume_timer = self._loop.call_later(_SHORTAGE_PAUSE, self._begin)
                return
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        """Apply the connection limit as ClientConnection does, but without a reply: TLS is not set up yet."""
        limits = self._app.limits
        most, seconds = limits.connections, limits.head_seconds
        over = 0 if most is None else len(self._state.connections) + len(self._handshakes) + 1 - most
        if over > RESERVED_CONNECTIONS:
            self._app.limit_reached("sockets")
            return sock.close()
        if over > 0:
            seconds = min(seconds, OVER_LIMIT_IDLE_SECONDS)
        sock.setblocking(False)
        self._handshakes.spawn(self._handshake(sock, seconds), "TLS handshake")

    async def _handshake(self, sock: socket.socket, within: float) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make, sock, ssl=self._tls, ssl_handshake_timeout=within
            )
        except OSError as error:  # errors of TLS and timeouts are OSErrors
            log.debug("TLS handshake with a client failed: %s", error)
            sock.close()


class TlsServer(uvicorn.Server):
    """A uvicorn server whose TLS connections are accepted by an Acceptor; it needs sockets to be passed."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config = self.config
        tls = config.ssl
        if tls is None:
            return await super().startup(sockets)
        await super().startup([])
        make = partial(
            cast(Callable[..., asyncio.Protocol], config.http_protocol_class),
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        app = cast(Application, config.app)
        self.servers = [Acceptor(each, tls, make, app, self.server_state) for each in sockets or ()]  # type: ignore[misc]
