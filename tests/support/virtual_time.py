"""Virtual time: an event loop whose clock jumps to the next timer as soon as nothing else is left to do.

Owns: the loop, and the replacement of ``time.monotonic`` by its clock. Must never enter: a gateway.

A test marked ``virtual_time`` runs on this loop (tests/conftest.py). All timers of the product are the loop's
(``call_later``, ``call_at``, ``asyncio.sleep``, ``asyncio.timeout``) and all durations are differences of
``time.monotonic``, so a limit of an hour expires at once and a busy machine cannot make one expire early.

Sockets are real. A peer in the same loop has answered before time moves: the loopback device delivers within
the call that sends, and the loop looks for input before each jump. A peer in another process or thread may be
late, so tests with one do not use this loop; work in the loop's executor or a ``DaemonThread`` is waited for.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Any

import pytest

from gateway.loop.daemon_thread import DaemonThread

#: How long input is waited for before time moves, in real seconds: after input, and after a jump.
GRACE, GRACE_AFTER_JUMP = 0.005, 0.0005


class OwnClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock ``now`` is also ``time.monotonic`` as long as the loop is open."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.now = 1000.0
        super().__init__(selector)
        self._clock = pytest.MonkeyPatch()
        self._clock.setattr(time, "monotonic", self.time)

    def close(self) -> None:
        """Close the loop and give ``time.monotonic`` back."""
        self._clock.undo()
        super().close()

    def time(self) -> float:
        return self.now


class VirtualTimeLoop(OwnClockLoop):
    """An event loop whose clock jumps to the next timer as soon as nothing else is left to do."""

    def __init__(self) -> None:
        #: Calls that run in threads; time stands still meanwhile.
        self.thread_calls = 0
        super().__init__(_JumpingSelector(self))
        run = DaemonThread.run

        async def counted(thread: DaemonThread, work: Any) -> Any:
            self.thread_calls += 1
            try:
                return await run(thread, work)
            finally:
                self.thread_calls -= 1

        self._clock.setattr(DaemonThread, "run", counted)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run ``func`` in a thread; time stands still until it is done."""
        future = super().run_in_executor(executor, func, *args)
        self.thread_calls += 1
        future.add_done_callback(self._executor_call_done)
        return future

    def _executor_call_done(self, future: asyncio.Future[Any]) -> None:
        self.thread_calls -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for input only briefly, then moves the clock of ``loop`` to the next timer."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop
        self._grace = GRACE

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or self._loop.thread_calls:
            return super().select(timeout if timeout == 0 else None)
        ready = super().select(min(timeout, self._grace))
        self._grace = GRACE if ready else GRACE_AFTER_JUMP
        if not ready:
            self._loop.now += max(timeout, 0.0)
        return ready
