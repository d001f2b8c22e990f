"""Signals that are read from a pipe, so that a selector can wait for them.

Owns: which signals the supervisor handles, and their handlers while it runs. Must never enter: what a signal
leads to.
"""

from __future__ import annotations

import selectors
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SIGNALS = (*STOP_SIGNALS, signal.SIGCHLD)


class SignalPipe:
    """A socket pair to which each signal writes its number (``signal.set_wakeup_fd``).

    The read end is registered with ``selector`` under None as its data.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._read_end, self._write_end = socket.socketpair()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals within the block; close the pipe at its end."""
        self._read_end.setblocking(False)
        self._write_end.setblocking(False)
        self._selector.register(self._read_end, selectors.EVENT_READ)
        before = {each: signal.signal(each, _do_nothing) for each in SIGNALS}
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            for each, handler in before.items():
                signal.signal(each, handler)
            self._selector.unregister(self._read_end)
            self.close()

    def drain(self) -> bytes:
        """Return the numbers of the signals since the last call. The selector must have reported some."""
        return self._read_end.recv(4096)

    def close(self) -> None:
        """Close both ends; in a forked process, its copies only."""
        self._read_end.close()
        self._write_end.close()


def _do_nothing(number: int, frame: object) -> None:
    """Handle a signal. Python writes to the wakeup descriptor only for a signal that has a handler."""
