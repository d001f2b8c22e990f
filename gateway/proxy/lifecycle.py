"""Whether the gateway takes new requests, and who is told when it stops.

Owns: the draining mark, the sets of open exchanges and of calls of engines. Must never enter: signals,
sockets, a dialect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from gateway.errors import Draining, GatewayError, Overloaded


class Interruptible(Protocol):
    """A running exchange."""

    def interrupt(self, reason: BaseException) -> None:
        """Raise ``reason`` where it waits."""
        ...


T = TypeVar("T")


class _Errand:
    """A call of engines that is under way, in a task of its own."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.reason: BaseException | None = None

    def interrupt(self, reason: BaseException) -> None:
        self.reason = reason
        self._task.cancel()


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
        self._open: set[Interruptible] = set()
        self._errands: set[Interruptible] = set()
        self._emptied: asyncio.Event | None = None

    @property
    def open_exchanges(self) -> int:
        return len(self._open)

    @property
    def running(self) -> int:
        """What a drain waits for: open exchanges, and calls of engines."""
        return len(self._open) + len(self._errands)

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
        self._tell_if_empty()

    async def errand(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work``, a call of engines, comes to; a drain waits for it, and it is refused by none.

        Raises Draining where it was cut.
        """
        # Not gateway.loop.tasks.Tasks: it ends in this caller, who may be cancelled and cancels it.
        task = asyncio.get_running_loop().create_task(work)
        errand = _Errand(task)
        self._errands.add(errand)
        try:
            return await task
        except asyncio.CancelledError:
            if errand.reason is None:
                raise
            raise errand.reason from None
        finally:
            self._errands.discard(errand)
            self._tell_if_empty()

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
        """From now on: not ready, no new exchange. Those that are open go on, also those that wait for a
        worker."""
        self.leaving = self.draining = True

    async def cut(self) -> None:
        """End all that runs now and wait until it has released what it held."""
        self._emptied = asyncio.Event()
        for exchange in tuple(self._open):
            self.end(exchange, Draining("the gateway is shutting down"))
        for errand in tuple(self._errands):
            errand.interrupt(Draining("the gateway is shutting down"))
        if self.running:
            await self._emptied.wait()

    def _tell_if_empty(self) -> None:
        if self._emptied is not None and not self.running:
            self._emptied.set()
