"""The addresses of workers by host name, from a system resolver that may hang.

Owns: calling the system's resolver in threads, and a cache of its answers. Must never enter: connecting.

The event loop's own resolver shares a few threads among all names: a handful of names whose servers do not
answer (the system gives up after 10 s and more) would delay all others. Here each name has at most one
thread, and a name that was resolved before stays usable while its server does not answer.
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

from gateway.loop.daemon_thread import set_result

#: Seconds for which an answer is used without asking again.
FRESH = 5.0
#: Seconds a connect waits for a new answer before it uses the old one.
REFRESH_WAIT = 0.25
#: Names that are looked up at once; others wait.
THREADS = 64
#: Names whose answers are cached.
CAPACITY = 4096

Lookup = Callable[..., Sequence[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class _Answer:
    addresses: tuple[str, ...]
    at: float


class Resolver:
    """Resolves host names. ``lookup`` is called in a thread with the arguments of ``socket.getaddrinfo``."""

    def __init__(self, lookup: Lookup | None = None) -> None:
        self._lookup = lookup
        self._answers: dict[str, _Answer] = {}
        self._pending: dict[str, asyncio.Task[tuple[str, ...]]] = {}
        self._slots = asyncio.Semaphore(THREADS)

    async def resolve(self, host: str) -> Sequence[str]:
        """Return the IP addresses of ``host``, at least one; ``host`` itself if it is an address.

        Raises OSError. Only a name that was never resolved makes the caller wait for a server that does not
        answer, and fail because of it.
        """
        if is_address(host):
            return (host,)
        cached = self._answers.get(host)
        if cached is not None and time.monotonic() - cached.at < FRESH:
            return cached.addresses
        pending = self._ask(host)
        if cached is not None:
            done, _ = await asyncio.wait([pending], timeout=REFRESH_WAIT)
            if not done or _no_server_answered(pending):
                return cached.addresses
        return await asyncio.shield(pending)

    def current(self, host: str) -> Sequence[str] | None:
        """Return the known addresses of ``host``, None if there are none; ask again if they are old."""
        cached = self._answers.get(host)
        if cached is None:
            return None
        if time.monotonic() - cached.at >= FRESH:
            self._ask(host)
        return cached.addresses

    def _ask(self, host: str) -> asyncio.Task[tuple[str, ...]]:
        pending = self._pending.get(host)
        if pending is None:
            # Not gateway.loop.tasks.Tasks: all callers that ask for the name share it.
            pending = asyncio.get_running_loop().create_task(self._answer(host), name=f"address of {host}")
            self._pending[host] = pending
            pending.add_done_callback(lambda task: self._answered(host, task))
        return pending

    def _answered(self, host: str, task: asyncio.Task[tuple[str, ...]]) -> None:
        del self._pending[host]
        if not task.cancelled() and task.exception() is None:
            self._answers.pop(host, None)
            self._answers[host] = _Answer(task.result(), time.monotonic())
            if len(self._answers) > CAPACITY:
                del self._answers[next(iter(self._answers))]  # the one that was resolved longest ago

    async def _answer(self, host: str) -> tuple[str, ...]:
        async with self._slots:
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[tuple[str, ...]] = loop.create_future()
            # A daemon thread: one that hangs must not keep the process from ending.
            threading.Thread(target=self._look_up, args=(host, loop, answer), daemon=True).start()
            return await answer

    def _look_up(
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
        with suppress(RuntimeError):  # the loop is closed and nothing awaits the answer
            loop.call_soon_threadsafe(set_result, answer, found, error)


def _no_server_answered(pending: asyncio.Task[tuple[str, ...]]) -> bool:
    """Return True if no name server answered, which says nothing about the name."""
    error = pending.exception()
    return isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN


def is_address(host: str) -> bool:
    """Return True for an IP address, with or without a zone; False for a name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
