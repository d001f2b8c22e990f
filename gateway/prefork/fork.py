"""A new process, made of this one.

Owns: the fork, the channel between the two, and what signals mean on the other side of it. Must never enter:
what the new process does, who watches over it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from gateway.prefork.log_writer import LogWriter
from gateway.prefork.signals import SIGNALS, STOPS

log = logging.getLogger(__name__)


def forked(live: Callable[[socket.socket], int], lines: LogWriter) -> tuple[int, socket.socket]:
    """A new process that does ``live``, with its end of the channel, and exits with the code that gives.

    Returns its id and our end. ``lines`` are what it logs to until it has something else. Raises OSError.
    """
    ours, theirs = socket.socketpair()
    # A signal to the whole group must not ring our bell from there, too.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            _begin(live, ours, theirs, lines)
    except OSError:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
    return pid, ours


def _begin(
    live: Callable[[socket.socket], int], ours: socket.socket, theirs: socket.socket, lines: LogWriter
) -> NoReturn:
    """What the new process does instead of returning."""
    code = 1
    try:
        ours.close()
        _unhear()
        code = live(theirs)
    except BaseException:
        log.exception("process %d failed", os.getpid())
        lines.flush()
    finally:
        os._exit(code)


def _unhear() -> None:
    """Signals are the supervisor's business until the process says what it makes of them."""
    signal.set_wakeup_fd(-1)
    for each in STOPS:
        signal.signal(each, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
