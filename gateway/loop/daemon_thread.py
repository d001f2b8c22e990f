"""What blocks, done beside the event loop: looks at files of a disk, or of a network, that may hang.

Owns: the thread, and handing a result back. Must never enter: what is done.

The standard library's executors, and those of the event loop, are waited for at the end of the process, so
that one call which hangs would keep it from ending, whatever signal it was sent.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Asked = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class DaemonThread:
    """Runs functions in a thread of its own, called ``name``, one after another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: SimpleQueue[_Asked | None] = SimpleQueue()
        self._started = False

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises. One that nobody waits for any more is not begun."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        if not self._started:
            self._started = True
            # A daemon: one that hangs must not hold up the end of the process.
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        self._waiting.put((loop, result, work))
        return await result

    def close(self) -> None:
        """End the thread, once what it does is done."""
        self._waiting.put(None)

    def _work(self) -> None:
        while (asked := self._waiting.get()) is not None:
            loop, result, work = asked
            if result.cancelled():
                continue
            error, found = None, None
            try:
                found = work()
            except Exception as failure:  # noqa: BLE001 - it is raised where the result is waited for
                error = failure
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(_tell, result, found, error)


def _tell(result: asyncio.Future[Any], found: object, error: Exception | None) -> None:
    if result.done():
        return
    if error is None:
        result.set_result(found)
    else:
        result.set_exception(error)
