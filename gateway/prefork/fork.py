"""Forking a gateway process.

Owns: the fork, the socket pair between the two processes, and the signal handlers of the new one. Must never
enter: what the new process does, who supervises it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from gateway.prefork.log_writer import LogWriter
from gateway.prefork.signals import SIGNALS, STOP_SIGNALS

log = logging.getLogger(__name__)


def fork_process(live: Callable[[socket.socket], int], log_writer: LogWriter) -> tuple[int, socket.socket]:
    """Fork a process that calls ``live`` with its end of a channel and exits with the code ``live`` returns.

    Return its process id and this end of the channel. The new process logs to ``log_writer`` until it sets up
    its own log. Raises OSError.
    """
    ours, theirs = socket.socketpair()
    # Until the new process resets its handlers, a signal in it would be written to the supervisor's pipe.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(live, ours, theirs, log_writer)
    except OSError:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
    return pid, ours


def _run_child(
    live: Callable[[socket.socket], int], ours: socket.socket, theirs: socket.socket, log_writer: LogWriter
) -> NoReturn:
    code = 1
    try:
        ours.close()
        # The stop signals are the supervisor's, until this process installs handlers of its own.
        signal.set_wakeup_fd(-1)
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = live(theirs)
    except BaseException:
        log.exception("process %d failed", os.getpid())
        log_writer.flush()
    finally:
        os._exit(code)
