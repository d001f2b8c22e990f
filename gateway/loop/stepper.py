"""Running a coroutine without a task, inside the callback that it waits for.

Owns: stepping a coroutine and interrupting it. Must never enter: what the coroutine does.

A task needs a future, a callback and an iteration of the event loop for each wait. An exchange waits for a
few bytes very often, and what it does with them is short. So its coroutine awaits a Wakeup, and the protocol
callback that fires the wakeup runs the coroutine up to its next wait. The coroutine may also await futures
and tasks. Code that needs the current task, such as ``asyncio.timeout``, runs in ``in_task``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Wakeup:
    """An event that one coroutine at a time can await, in a CoroutineStepper or in a task, any number of
    times.

    To a task it looks like a future, so the names of its members are those of asyncio.
    """

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_resume")

    def __init__(self) -> None:
        self._asyncio_future_blocking = False
        self._cancelled = False
        self._resume: Callable[[], object] | None = None

    def __await__(self) -> Generator[Wakeup, None, None]:
        self._asyncio_future_blocking = True
        yield self

    def fire(self) -> None:
        """Run the waiting coroutine, if there is one, up to its next wait (a task: in the next iteration)."""
        resume = self._resume
        if resume is not None:
            self._resume = None
            resume()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        self._resume = partial(self.get_loop().call_soon, callback, self, context=context)

    def result(self) -> None:
        if self._cancelled:
            self._cancelled = False
            raise asyncio.CancelledError

    def cancel(self, msg: Any = None) -> bool:
        self._cancelled = self._resume is not None
        self.fire()
        return self._cancelled


class CoroutineStepper:
    """Runs one coroutine from ``start`` to its end."""

    _coroutine: Coroutine[Any, Any, None] | None = None
    _on_end: Callable[[], object] | None = None
    #: What the coroutine awaits: a Wakeup or a future.
    _awaited: Any = None
    #: What ``interrupt`` is to raise.
    _reason: BaseException | None = None
    _running = False

    def start(self, coroutine: Coroutine[Any, Any, None], on_end: Callable[[], object] | None = None) -> None:
        """Run ``coroutine`` up to its first wait. ``on_end`` is called when it ends, however it ends."""
        self._coroutine = coroutine
        self._on_end = on_end
        self._step()

    def interrupt(self, reason: BaseException) -> None:
        """Raise ``reason`` where the coroutine waits, or at its next wait. Only the first reason counts."""
        if self._reason is None and self._coroutine is not None:
            self._reason = reason
            if not self._running:
                self._step()

    def _step(self) -> None:
        """Run the coroutine up to its next wait."""
        previous, self._awaited = self._awaited, None
        if type(previous) is Wakeup:
            previous._resume = None
        coroutine = self._coroutine
        assert coroutine is not None
        self._running = True
        try:
            while True:
                reason = self._reason
                if reason is None:
                    awaited = coroutine.send(None)
                else:
                    self._reason = None
                    awaited = coroutine.throw(reason)
                if self._reason is None:
                    break
        except BaseException as end:
            self._running = False
            self._coroutine = None
            if self._on_end is not None:
                self._on_end()
            if not isinstance(end, StopIteration):
                raise
            return
        self._running = False
        self._awaited = awaited
        if type(awaited) is Wakeup:
            awaited._asyncio_future_blocking = False
            awaited._resume = self._step
        else:
            self._wait_for_future(awaited)

    def _wait_for_future(self, future: Any) -> None:
        if future is None:  # a bare yield, such as asyncio.sleep(0): go on in the next iteration of the loop
            future = self._awaited = asyncio.get_running_loop().create_future()
            future.set_result(None)
        else:
            future._asyncio_future_blocking = False
        future.add_done_callback(self._future_done)

    def _future_done(self, future: asyncio.Future[Any]) -> None:
        if self._awaited is future:
            self._step()


async def in_task(work: Coroutine[Any, Any, T], discard: Callable[[T], object]) -> T:
    """Await ``work`` in a task of its own.

    If the caller is interrupted, the task is cancelled; a result that it has nevertheless goes to
    ``discard``.
    """
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
