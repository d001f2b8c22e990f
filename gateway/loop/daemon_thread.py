"""A thread for calls that may block for ever, such as reading a file of a network file system.

Owns: the thread, and handing its results to the event loop. Must never enter: what the calls do.

The executors of the standard library and of the event loop are joined when the process ends, so a single call
that never returns would keep the process from ending, whatever signal it is sent.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class DaemonThread:
    """A daemon thread, called ``name``, that runs functions one after another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._started = False

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, or raise what it raises.

        If the caller is cancelled before ``work`` was begun, it is not begun.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        if not self._started:
            self._started = True
            # A daemon thread: a call that never returns must not keep the process from ending.
            threading.Thread(target=self._run_jobs, name=self._name, daemon=True).start()
        self._jobs.put((loop, result, work))
        return await result

    def close(self) -> None:
        """End the thread after the jobs it has."""
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, result, work = job
            if result.cancelled():
                continue
            error, value = None, None
            try:
                value = work()
            except Exception as failure:  # noqa: BLE001 - it is raised where the result is awaited
                error = failure
            with suppress(RuntimeError):  # the loop is closed and nothing awaits the result
                loop.call_soon_threadsafe(set_result, result, value, error)


def set_result(future: asyncio.Future[Any], value: object, error: Exception | None) -> None:
    """Resolve ``future`` with ``error``, or with ``value`` if that is None, unless it was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
