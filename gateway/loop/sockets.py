"""TCP sockets, for both sides.

Owns: how a peer that vanished without a word is found out, and whose fault it is that there is no socket.
Must never enter: a protocol.
"""

from __future__ import annotations

import errno
import socket
from asyncio import BaseTransport

#: Seconds of silence before a peer's kernel is asked whether it is still there, between two questions, and
#: how many may go unanswered: a vanished peer is found out within a minute. An idle one answers by itself.
IDLE, INTERVAL, COUNT = 30, 10, 3

#: What a connect fails with when this machine, not the peer, is short of something.
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})


def is_shortage(error: BaseException | None) -> bool:
    """Whether ``error``, or what led to it, says that this machine has no socket left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _OURS:
            return True
        if isinstance(error, BaseExceptionGroup):
            return any(is_shortage(each) for each in error.exceptions)
        error = error.__cause__ or error.__context__  # a library in between may have hidden the cause
    return False


def tcp_keepalive_options(
    idle: int = IDLE, interval: int = INTERVAL, count: int = COUNT
) -> list[tuple[int, int, int]]:
    """Socket options (level, name, value) by which the kernel finds out when the peer is gone."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", count)):
        if hasattr(socket, name):  # not on every system
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


_OPTIONS = tcp_keepalive_options()


def enable_tcp_keepalive(transport: BaseTransport) -> None:
    """Let the kernel find out when the peer of ``transport`` is gone."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for option in _OPTIONS:
        sock.setsockopt(*option)
