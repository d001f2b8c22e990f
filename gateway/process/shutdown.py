"""Graceful shutdown of a process that serves.

Owns: the order of a shutdown, and what a signal does. Must never enter: the start, limits of the operating
system, requests.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from types import FrameType

import uvicorn

from gateway.downstream.tls import TlsServer
from gateway.prefork.frames import Verb
from gateway.prefork.peers import Peers
from gateway.proxy.lifecycle import Lifecycle

log = logging.getLogger(__name__)

#: Seconds for which connections that were accepted just before are still served. Their requests get a 503; if
#: the connection were closed instead, the client could not know whether its request was handled.
FINAL_DELAY = 0.1


class Server(TlsServer):
    """A server of uvicorn with a graceful shutdown, which the first SIGTERM or SIGINT begins.

    1. It reports that it is not ready.
    2. After the lifecycle's delay it refuses new exchanges.
    3. It waits up to ``grace`` seconds for running exchanges.
    4. It stops listening.

    A second signal ends the process at once.
    """

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, grace: float) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._grace = grace
        self._deadline: float | None = None
        #: When new requests are refused; None: no shutdown has begun.
        self._drain_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown, or end it at once. uvicorn calls this between two iterations of the loop."""
        if self._lifecycle.leaving:
            self._deadline = float("-inf")
            self._lifecycle.drain()
        else:
            self._lifecycle.stop()

    async def on_tick(self, counter: int) -> bool:
        """Advance the shutdown; return True to end. uvicorn calls this every 0.1 s."""
        await super().on_tick(counter)
        if not self._lifecycle.leaving:
            return False
        now = asyncio.get_running_loop().time()
        if not self._lifecycle.draining and not self._delayed(now):
            return False
        if self._deadline is None:
            log.info("draining: %d exchanges and control calls are running", self._lifecycle.running)
            self._deadline = now + self._grace
        return self._lifecycle.running == 0 or now >= self._deadline

    def _delayed(self, now: float) -> bool:
        """Return True once the lifecycle's delay has passed, in which load balancers notice the shutdown."""
        if self._drain_at is None:
            self._drain_at = now + self._lifecycle.delay
            log.info("shutting down: requests are accepted for another %g s", self._lifecycle.delay)
        if now >= self._drain_at:
            self._lifecycle.drain()
        return self._lifecycle.draining

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cut what still runs, with an error to its client, then close everything."""
        self._lifecycle.drain()
        if self._lifecycle.running:
            log.warning("cutting %d exchanges and control calls", self._lifecycle.running)
            await self._lifecycle.cut()
        self._stop_listening(sockets or ())
        await asyncio.sleep(FINAL_DELAY)
        await super().shutdown(sockets)

    def _stop_listening(self, sockets: Iterable[socket.socket]) -> None:
        """Accept no more connections, as nobody would answer them."""
        for server in self.servers:
            server.close()
        for listener in sockets:
            listener.close()
        self.servers = []


class ProcessServer(Server):
    """The server of one process of several.

    It drains and ends when the supervisor says so. If the supervisor has exited, it handles signals itself,
    finishes its exchanges and ends. Until all processes have drained it goes on answering (with 503), as the
    kernel hands new connections to any of them.
    """

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, grace: float, peers: Peers) -> None:
        super().__init__(config, lifecycle, grace)
        self._peers = peers
        self._reported: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._peers.report(Verb.SERVING)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ignore signals while there is a supervisor: a signal to the process group reaches it, too."""
        if self._peers.supervisor_lost:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        done = await super().on_tick(counter)
        peers = self._peers
        if peers.supervisor_lost:
            if self.servers:
                log.error("the supervisor has exited: finishing running exchanges, accepting no others")
                self._stop_listening(())
            return done
        running = self._lifecycle.running
        if self._lifecycle.draining and running != self._reported:
            self._reported = running
            peers.report(Verb.RUNNING, b"%d" % running)
        return peers.end_requested
