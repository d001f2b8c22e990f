"""The gateway's readiness for new requests, and the drain of those that run.

Owns: the draining mark, the sets of open exchanges and of control calls under way. Must never enter: signals,
sockets, a dialect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from gateway.errors import Draining, GatewayError, Overloaded


class Interruptible(Protocol):
    """An exchange or a control call under way."""

    def interrupt(self, reason: BaseException) -> None:
        """Raise ``reason`` where it waits."""
        ...


T = TypeVar("T")


class _ControlCall:
    """A control call under way, in a task of its own."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.reason: BaseException | None = None

    def interrupt(self, reason: BaseException) -> None:
        self.reason = reason
        self._task.cancel()


class Lifecycle:
    """The state of one application: ready, not ready, draining.

    At most ``max_open`` exchanges are open at once; None: any number. For ``delay`` seconds before a drain
    the gateway reports that it is not ready but refuses nothing, so that load balancers can notice.
    """

    def __init__(self, max_open: int | None = None, delay: float = 0.0) -> None:
        #: True: clients should send new requests elsewhere, though they may still be accepted.
        self.leaving = False
        self.draining = False
        self.delay = delay
        self._max_open = max_open
        self._open: set[Interruptible] = set()
        self._control_calls: set[Interruptible] = set()
        self._nothing_runs: asyncio.Event | None = None

    @property
    def open_exchanges(self) -> int:
        return len(self._open)

    @property
    def running(self) -> int:
        """The number of open exchanges and control calls, for which a drain waits."""
        return len(self._open) + len(self._control_calls)

    def enter(self, exchange: Interruptible) -> None:
        """Count an exchange as open. Raises Draining and Overloaded."""
        if self.draining:
            raise Draining("the gateway is shutting down; please try again elsewhere")
        if self._max_open is not None and len(self._open) >= self._max_open:
            raise Overloaded(
                "the gateway has reached its limit of requests in flight; please try again", limit="in_flight"
            )
        self._open.add(exchange)

    def leave(self, exchange: Interruptible) -> None:
        """Count an exchange as ended; unknown ones are ignored."""
        self._open.discard(exchange)
        self._notify_if_empty()

    async def run_control_call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``, a control call. A drain waits for it and does not refuse it.

        Raises Draining if ``cut`` ended it.
        """
        # Not gateway.loop.tasks.Tasks: the task ends with this caller, which cancels it when cancelled.
        task = asyncio.get_running_loop().create_task(work)
        call = _ControlCall(task)
        self._control_calls.add(call)
        try:
            return await task
        except asyncio.CancelledError:
            if call.reason is None:
                raise
            raise call.reason from None
        finally:
            self._control_calls.discard(call)
            self._notify_if_empty()

    def end(self, exchange: Interruptible, reason: GatewayError) -> None:
        """Interrupt an exchange with ``reason`` if it is open."""
        if exchange in self._open:
            exchange.interrupt(reason)

    def stop(self) -> None:
        """Report not ready from now on, and drain at once if there is no delay (else ``drain`` is called)."""
        self.leaving = True
        if not self.delay:
            self.drain()

    def drain(self) -> None:
        """Report not ready and refuse new exchanges. Open ones go on, also those queued for a worker."""
        self.leaving = self.draining = True

    async def cut(self) -> None:
        """End everything that runs, and wait until it has released what it holds."""
        self._nothing_runs = asyncio.Event()
        for exchange in tuple(self._open):
            self.end(exchange, Draining("the gateway is shutting down"))
        for call in tuple(self._control_calls):
            call.interrupt(Draining("the gateway is shutting down"))
        if self.running:
            await self._nothing_runs.wait()

    def _notify_if_empty(self) -> None:
        if self._nothing_runs is not None and not self.running:
            self._nothing_runs.set()
