"""Whether the gateway takes new requests, and who is told when it stops.

Owns: the draining mark and the count of open exchanges. Must never enter: signals, sockets, a dialect.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.errors import Draining, GatewayError


class Lifecycle:
    """One per app. Knows the task of every open exchange, and why it is being ended if it is."""

    def __init__(self) -> None:
        self.draining = False
        self._open: dict[asyncio.Task[Any], GatewayError | None] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def open_exchanges(self) -> int:
        return len(self._open)

    def enter(self, task: asyncio.Task[Any]) -> None:
        """An exchange starts. Raises Draining when no new one is taken."""
        if self.draining:
            raise Draining("the gateway is shutting down; please try again elsewhere")
        self._open[task] = None
        self._empty.clear()

    def leave(self, task: asyncio.Task[Any]) -> None:
        """The exchange of ``task`` is over; unknown tasks are ignored."""
        self._open.pop(task, None)
        if not self._open:
            self._empty.set()

    def end(self, task: asyncio.Task[Any], reason: GatewayError) -> None:
        """Cancel an open exchange because of ``reason``; the first reason stays."""
        if task in self._open and self._open[task] is None:
            self._open[task] = reason
            task.cancel()

    def reason(self, task: asyncio.Task[Any]) -> GatewayError | None:
        """Why ``task`` was ended through ``end``."""
        return self._open.get(task)

    def drain(self) -> None:
        """From now on: not ready, no new exchange."""
        self.draining = True

    async def drained(self, grace: float) -> bool:
        """Wait up to ``grace`` seconds for the open exchanges to end; False if some did not."""
        try:
            async with asyncio.timeout(grace):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def cut(self) -> None:
        """End all open exchanges now and wait until they have released what they held."""
        for task in tuple(self._open):
            self.end(task, Draining("the gateway is shutting down"))
        await self._empty.wait()
