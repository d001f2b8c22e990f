"""Signals, as something that can be waited for like anything else.

Owns: which signals the supervisor hears, and their handlers while it does. Must never enter: what follows
from one.
"""

from __future__ import annotations

import selectors
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

STOPS = (signal.SIGTERM, signal.SIGINT)
SIGNALS = (*STOPS, signal.SIGCHLD)


class SignalPipe:
    """Each signal rings it with its number, so that it interrupts nothing. ``selector`` tells of it with None
    for its data."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._near, self._far = socket.socketpair()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """For as long as signals ring it; closed after that."""
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._selector.register(self._near, selectors.EVENT_READ)
        before = {each: signal.signal(each, _noted) for each in SIGNALS}
        signal.set_wakeup_fd(self._far.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            for each, handler in before.items():
                signal.signal(each, handler)
            self._selector.unregister(self._near)
            self.close()

    def drain(self) -> bytes:
        """The numbers of the signals since it was asked last; only for who was told that there are any."""
        return self._near.recv(4096)

    def close(self) -> None:
        """Release its sockets; in a process that was forked, its copies only."""
        self._near.close()
        self._far.close()


def _noted(number: int, frame: object) -> None:
    """The handler of a signal that rings the bell."""
