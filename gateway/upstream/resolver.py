"""Addresses of workers by name, from a resolver that may hang.

Owns: asking the system's resolver in threads, and what it answered last. Must never enter: connecting.

The event loop's own way has few threads for all names: a handful that hang (a resolver that does not answer
takes 10 s and more to give up) would keep everybody else's waiting. So each name has at most one thread, and
a name that was known stays known while its resolver is silent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

#: An answer is used without a question for so long, in seconds.
FRESH = 5.0
#: How long a connect waits for a new answer before it takes the old one, in seconds.
PATIENCE = 0.25
#: Resolver asked for at once; more wait for their turn.
THREADS = 64

#: Resolver whose answers are kept.
CAPACITY = 4096

Lookup = Callable[..., Sequence[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class _Answer:
    addresses: tuple[str, ...]
    at: float


class Resolver:
    """What names stand for. ``lookup`` is called in a thread, as ``socket.getaddrinfo`` is."""

    def __init__(self, lookup: Lookup | None = None) -> None:
        self._lookup = lookup
        self._known: dict[str, _Answer] = {}
        self._asking: dict[str, asyncio.Task[tuple[str, ...]]] = {}
        self._room = asyncio.Semaphore(THREADS)

    async def resolve(self, host: str) -> Sequence[str]:
        """IP addresses of ``host``, itself if it is one; at least one. Raises OSError.

        Waits as long as the resolver takes, and fails for its silence, only for a name that was never known.
        """
        if _is_address(host):
            return (host,)
        known = self._known.get(host)
        if known is not None and time.monotonic() - known.at < FRESH:
            return known.addresses
        asking = self._ask(host)
        if known is not None:
            done, _ = await asyncio.wait([asking], timeout=PATIENCE)
            if not done or _gave_up(asking):
                return known.addresses
        return await asyncio.shield(asking)

    def _ask(self, host: str) -> asyncio.Task[tuple[str, ...]]:
        asking = self._asking.get(host)
        if asking is None:
            # Not gateway.loop.tasks.Tasks: all callers that ask for the name share it.
            asking = asyncio.get_running_loop().create_task(self._answer(host), name=f"address of {host}")
            self._asking[host] = asking
            asking.add_done_callback(lambda task: self._over(host, task))
        return asking

    def _over(self, host: str, task: asyncio.Task[tuple[str, ...]]) -> None:
        del self._asking[host]
        if not task.cancelled() and task.exception() is None:
            self._known.pop(host, None)
            self._known[host] = _Answer(task.result(), time.monotonic())
            if len(self._known) > CAPACITY:
                del self._known[next(iter(self._known))]  # the one asked for least lately

    async def _answer(self, host: str) -> tuple[str, ...]:
        async with self._room:
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[tuple[str, ...]] = loop.create_future()
            # A daemon: one that hangs must not hold up the end of the process.
            threading.Thread(target=self._work, args=(host, loop, answer), daemon=True).start()
            return await answer

    def _work(
        self, host: str, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[tuple[str, ...]]
    ) -> None:
        error: Exception | None = None
        found: tuple[str, ...] = ()
        try:
            rows = (self._lookup or socket.getaddrinfo)(host, None, type=socket.SOCK_STREAM)
            found = tuple(dict.fromkeys(str(row[4][0]) for row in rows))
        except (OSError, UnicodeError) as failure:
            error = failure
        if not found and error is None:
            error = OSError(f"no address for {host}")
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(_tell, answer, found, error)


def _tell(answer: asyncio.Future[tuple[str, ...]], found: tuple[str, ...], error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(found)
    else:
        answer.set_exception(error)


def _gave_up(asking: asyncio.Task[tuple[str, ...]]) -> bool:
    """Whether the system found no resolver that answers, which says nothing of the name."""
    error = asking.exception()
    return isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
