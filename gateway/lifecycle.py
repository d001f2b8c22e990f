"""Whether the gateway takes new requests, and who is told when it stops.

Owns: the draining mark, the set of open exchanges and the number of control calls. Must never enter: signals,
sockets, a dialect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from gateway.errors import Draining, GatewayError, Overloaded


class Interruptible(Protocol):
    """A running exchange."""

    def interrupt(self, reason: BaseException) -> None:
        """Raise ``reason`` where it waits."""
        ...


class Lifecycle:
    """One per app. At most ``most`` exchanges are open at once; None: any number.

    With ``delay`` it is seen to stop before it refuses anything: for so many seconds whoever sends requests
    here may notice.
    """

    def __init__(self, most: int | None = None, delay: float = 0.0) -> None:
        #: New exchanges should go elsewhere, though they may still be taken.
        self.leaving = False
        self.draining = False
        self.delay = delay
        self._most = most
        #: Called once it drains.
        self.drained: Callable[[], None] = lambda: None
        self._open: set[Interruptible] = set()
        #: Control calls that workers have not answered yet.
        self.open_calls = 0
        self._emptied: asyncio.Event | None = None

    @property
    def open_exchanges(self) -> int:
        return len(self._open)

    @property
    def idle(self) -> bool:
        """Nothing runs that a gateway which drains would wait for."""
        return not self._open and not self.open_calls

    @contextmanager
    def call(self) -> Iterator[None]:
        """A control call to workers, waited for as exchanges are: half loaded weights help nobody."""
        self.open_calls += 1
        try:
            yield
        finally:
            self.open_calls -= 1

    def enter(self, exchange: Interruptible) -> None:
        """An exchange starts. Raises Draining when no new one is taken, and Overloaded."""
        if self.draining:
            raise Draining("the gateway is shutting down; please try again elsewhere")
        if self._most is not None and len(self._open) >= self._most:
            raise Overloaded(
                "the gateway has as many requests as it takes; please try again", limit="in_flight"
            )
        self._open.add(exchange)

    def leave(self, exchange: Interruptible) -> None:
        """The exchange is over; unknown ones are ignored."""
        self._open.discard(exchange)
        if self._emptied is not None and not self._open:
            self._emptied.set()

    def end(self, exchange: Interruptible, reason: GatewayError) -> None:
        """Interrupt an exchange because of ``reason``, if it is open."""
        if exchange in self._open:
            exchange.interrupt(reason)

    def stop(self) -> None:
        """From now on: not ready. No new exchange either, or not until somebody calls ``drain`` later."""
        self.leaving = True
        if not self.delay:
            self.drain()

    def drain(self) -> None:
        """From now on: not ready, no new exchange."""
        self.leaving = self.draining = True
        self.drained()

    async def cut(self) -> None:
        """End all open exchanges now and wait until they have released what they held."""
        self._emptied = asyncio.Event()
        for exchange in tuple(self._open):
            self.end(exchange, Draining("the gateway is shutting down"))
        if self._open:
            await self._emptied.wait()
