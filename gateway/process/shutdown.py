"""How a process that serves ends.

Owns: the order of a shutdown, and what a signal means. Must never enter: how it began, limits of the
operating system, requests.
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

#: How long clients that were accepted a moment ago have to send a request, and be told to go elsewhere, where
#: a close would look as if it had been lost, in seconds.
LAST_WORDS = 0.1


class Server(TlsServer):
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
            log.info("draining: %d exchanges and control calls are running", self._lifecycle.running)
            self._deadline = now + self._grace
        return self._lifecycle.running == 0 or now >= self._deadline

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
        if self._lifecycle.running:
            log.warning("cutting %d exchanges and control calls", self._lifecycle.running)
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

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, grace: float, peers: Peers) -> None:
        super().__init__(config, lifecycle, grace)
        self._peers = peers
        self._told: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._peers.tell(Verb.SERVING)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to the whole group is one signal, the supervisor's."""
        if self._peers.lost:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        over = await super().on_tick(counter)
        peers = self._peers
        if peers.lost:
            if self.servers:
                log.error("the supervisor is gone: running exchanges are finished, no others begun")
                self._stop_listening(())
            return over
        running = self._lifecycle.running
        if self._lifecycle.draining and running != self._told:
            self._told = running
            peers.tell(Verb.OPEN, b"%d" % running)
        return peers.ended
