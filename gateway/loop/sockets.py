"""Options and errors of TCP sockets, for clients and workers alike.

Owns: TCP keep-alive, and telling a local shortage of sockets from a fault of the peer. Must never enter: a
protocol.
"""

from __future__ import annotations

import errno
import socket
from asyncio import BaseTransport

#: Seconds of silence before the kernel probes the peer, seconds between two probes, and probes without an
#: answer before the connection is closed: a machine that disappeared is noticed within 25 s. The kernel of an
#: idle peer answers by itself.
IDLE, INTERVAL, COUNT = 10, 5, 3

#: Errors of a connect when this machine, not the peer, is short of something.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})


def is_shortage(error: BaseException | None) -> bool:
    """Return True if ``error`` or a cause of it says that this machine has no socket left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            return True
        if isinstance(error, BaseExceptionGroup):
            return any(is_shortage(each) for each in error.exceptions)
        error = error.__cause__ or error.__context__  # a library in between may have hidden the cause
    return False


def tcp_keepalive_options(
    idle: int = IDLE, interval: int = INTERVAL, count: int = COUNT
) -> list[tuple[int, int, int]]:
    """Return the socket options (level, name, value) that let the kernel notice a peer that disappeared."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", count)):
        if hasattr(socket, name):  # not on every system
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


_OPTIONS = tcp_keepalive_options()


def enable_tcp_keepalive(transport: BaseTransport) -> None:
    """Let the kernel notice when the peer of ``transport`` disappears without closing the connection."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for option in _OPTIONS:
        sock.setsockopt(*option)
