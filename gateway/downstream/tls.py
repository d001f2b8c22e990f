"""Taking clients that come over TLS.

Owns: accepting them, the limits on those who have not said who they are yet, and handing them on. Must never
enter: certificates, requests, how a server ends.

The event loop's own server would wait a minute for each handshake, for any number of them, and tell nobody:
whoever opens connections and says nothing would have all the files that this process may open.
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

#: Connections that are taken in one turn of the loop.
_AT_ONCE = 64
#: Seconds until connections are taken again, when no file is left for one.
_BREATHER = 1.0


class Acceptor:
    """Takes the connections of ``listener`` for as long as it is not closed, and makes a protocol for each
    whose handshake is done. To uvicorn it is one of its servers."""

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
        self._greeted = Tasks()
        self._again: asyncio.TimerHandle | None = None
        self._begin()

    def close(self) -> None:
        """Take no connection any more, and close the listener."""
        if self._again is not None:
            self._again.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    async def wait_closed(self) -> None:
        """Let go of those who did not get through their handshake."""
        await self._greeted.stop()

    def _begin(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("no connection of a client can be taken: %s", error.strerror)
                self._loop.remove_reader(self._listener)
                self._again = self._loop.call_later(_BREATHER, self._begin)
                return
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        """As ClientConnection does once it is there; who is one too many cannot be told so here."""
        limits = self._app.limits
        most, seconds = limits.connections, limits.head_seconds
        over = 0 if most is None else len(self._state.connections) + len(self._greeted) + 1 - most
        if over > RESERVED_CONNECTIONS:
            self._app.hit("sockets")
            return sock.close()
        if over > 0:
            seconds = min(seconds, OVER_LIMIT_IDLE_SECONDS)
        sock.setblocking(False)
        self._greeted.spawn(self._greet(sock, seconds), "TLS handshake")

    async def _greet(self, sock: socket.socket, within: float) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make, sock, ssl=self._tls, ssl_handshake_timeout=within
            )
        except OSError as error:  # which those of TLS are, and those of a time that is up
            log.debug("no TLS with a client: %s", error)
            sock.close()


class TlsServer(uvicorn.Server):
    """uvicorn, but that connections over TLS are taken by an Acceptor. For sockets that are given to it."""

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
