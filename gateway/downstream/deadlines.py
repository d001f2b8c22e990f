"""The time limits on each step of a client.

Owns: the timer, and the judgement which client is too slow. Must never enter: a socket, what is done about
it.
"""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import Final, Protocol

from gateway.downstream.limits import ClientLimits
from gateway.downstream.request_parser import RequestParser

#: Bytes of a reply that count as one step of reading it.
READ_STEP: Final = 16 * 1024


class Phase(StrEnum):
    """A state of a connection, named after what it waits for."""

    #: For the first byte of a request.
    IDLE = "idle"
    #: For the rest of a head.
    HEAD = "head"
    #: For the rest of a body.
    BODY = "body"
    #: For the gateway: the client may wait for any time.
    REPLY = "reply"
    #: For the client to read its reply, whatever else is waited for.
    UNREAD = "unread"


class StallTimer:
    """Measures how long a client has made no progress in one phase.

    It is checked now and then, so that a limit is noticed late by at most the time between two checks. In
    return, requests cost nothing: a connection has one timer, which no request touches.
    """

    def __init__(self, limits: ClientLimits, now: float) -> None:
        self._limits = {
            Phase.IDLE: limits.idle_seconds,
            Phase.HEAD: limits.head_seconds,
            Phase.BODY: limits.body_seconds,
            Phase.UNREAD: limits.unread_seconds,
        }
        self._seen: tuple[Phase, object] = (Phase.IDLE, (0, 0))
        self._since = now

    def expired(self, phase: Phase, progress: object, now: float) -> bool:
        """Return True if ``phase`` and ``progress`` are unchanged for as long as the limit of the phase."""
        if self._seen != (phase, progress):
            self._seen, self._since = (phase, progress), now
            return False
        limit = self._limits.get(phase)
        return limit is not None and now - self._since >= limit


class TimedConnection(Protocol):
    """The connection, as far as its deadlines need it."""

    def phase(self) -> Phase:
        """Return what the connection waits for; never UNREAD."""
        ...

    def unsent_bytes(self) -> int:
        """Return the bytes of replies that the client has not read and the kernel did not take."""
        ...

    def deadline_exceeded(self, phase: Phase) -> None:
        """Act on a client that took too long in ``phase``."""
        ...


class ClientDeadlines:
    """The deadlines of one connection."""

    def __init__(self, connection: TimedConnection, parser: RequestParser) -> None:
        self._connection: TimedConnection | None = connection
        self._parser = parser
        #: Replies that were complete, and how often the client read what was unsent: its progress.
        self.replies = 0
        self.drains = 0
        self._limits: ClientLimits
        self._stalled: StallTimer
        self._unread: StallTimer | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, limits: ClientLimits) -> None:
        """Enforce ``limits`` from now on."""
        self._limits = limits
        self._stalled = StallTimer(limits, time.monotonic())
        self._schedule()

    def stop(self) -> None:
        """Enforce nothing more, and break the reference cycle with the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._connection = None

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._limits.interval, self._check)

    def _check(self) -> None:
        connection = self._connection
        if connection is None:
            return
        self._schedule()
        now = time.monotonic()
        if self._reply_is_unread(connection.unsent_bytes(), now):
            return connection.deadline_exceeded(Phase.UNREAD)
        phase = connection.phase()
        progress = (self._parser.begun + self.replies, self._parser.body_bytes // self._limits.body_step)
        if self._stalled.expired(phase, progress, now):
            connection.deadline_exceeded(phase)

    def _reply_is_unread(self, unsent: int, now: float) -> bool:
        """Return True if the client read next to nothing for as long as the limit."""
        if not unsent:
            self._unread = None
            return False
        if self._unread is None:
            self._unread = StallTimer(self._limits, now)
        return self._unread.expired(Phase.UNREAD, (self.drains, unsent // READ_STEP), now)
