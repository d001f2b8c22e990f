"""Running a coroutine without a task: it goes on inside the callback that it waited for.

Owns: stepping a coroutine, and interrupting it. Must never enter: what the coroutine does.

A task pays a future, a callback and a turn of the loop for every wait. An exchange waits for a few bytes
very often, and what it then does is short. So it is driven by hand: it awaits a Signal, and whoever fires the
signal runs it on to its next wait. It may await futures and tasks, too; what asks for the current task
(``asyncio.timeout``) belongs into ``in_task``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Wakeup:
    """Something to wait for, any number of times, by one coroutine at a time: under a Drive or in a task.

    For a task it looks like a future; the names of its members are asyncio's.
    """

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_waiting")

    def __init__(self) -> None:
        self._asyncio_future_blocking = False
        self._cancelled = False
        self._waiting: Callable[[], object] | None = None

    def __await__(self) -> Generator[Wakeup, None, None]:
        self._asyncio_future_blocking = True
        yield self

    def fire(self) -> None:
        """Run who waits up to its next wait (a task: in the loop's next turn), if anybody does."""
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
            waiting()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        self._waiting = partial(self.get_loop().call_soon, callback, self, context=context)

    def result(self) -> None:
        if self._cancelled:
            self._cancelled = False
            raise asyncio.CancelledError

    def cancel(self, msg: Any = None) -> bool:
        self._cancelled = self._waiting is not None
        self.fire()
        return self._cancelled


class CoroutineStepper:
    """Runs one coroutine, from ``start`` to its end."""

    _coroutine: Coroutine[Any, Any, None] | None = None
    _ended: Callable[[], object] | None = None
    _waits_for: Any = None
    _reason: BaseException | None = None
    _running = False

    def start(self, coroutine: Coroutine[Any, Any, None], ended: Callable[[], object] | None = None) -> None:
        """Run ``coroutine`` up to its first wait. ``ended`` is called once it is over, however it ends."""
        self._coroutine = coroutine
        self._ended = ended
        self._step()

    def interrupt(self, reason: BaseException) -> None:
        """Raise ``reason`` where the coroutine waits, or will wait next. The first reason counts."""
        if self._reason is None and self._coroutine is not None:
            self._reason = reason
            if not self._running:
                self._step()

    def _step(self) -> None:
        waited, self._waits_for = self._waits_for, None
        if type(waited) is Wakeup:
            waited._waiting = None
        coroutine = self._coroutine
        assert coroutine is not None
        self._running = True
        try:
            while True:
                reason = self._reason
                if reason is None:
                    waits_for = coroutine.send(None)
                else:
                    self._reason = None
                    waits_for = coroutine.throw(reason)
                if self._reason is None:
                    break
        except BaseException as end:
            self._over()
            if not isinstance(end, StopIteration):
                raise
            return
        self._running = False
        self._waits_for = waits_for
        if type(waits_for) is Wakeup:
            waits_for._asyncio_future_blocking = False
            waits_for._waiting = self._step
        else:
            self._wait_for_future(waits_for)

    def _wait_for_future(self, future: Any) -> None:
        if future is None:
            future = self._waits_for = asyncio.get_running_loop().create_future()
            future.set_result(None)
        else:
            future._asyncio_future_blocking = False
        future.add_done_callback(self._woken)

    def _over(self) -> None:
        self._running = False
        self._coroutine = None
        if self._ended is not None:
            self._ended()

    def _woken(self, future: asyncio.Future[Any]) -> None:
        if self._waits_for is future:
            self._step()


async def in_task(work: Coroutine[Any, Any, T], discard: Callable[[T], object]) -> T:
    """Await ``work`` in a task of its own. If the caller is interrupted, so is it; a result nobody takes any
    more goes to ``discard``."""
    # Not gateway.loop.tasks.Tasks: only this caller waits for the result and reports it.
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await task
    except BaseException:
        if not task.done():
            task.cancel()
        task.add_done_callback(partial(_discard, discard))
        raise


def _discard(discard: Callable[[T], object], task: asyncio.Task[T]) -> None:
    if not task.cancelled() and task.exception() is None:
        discard(task.result())
