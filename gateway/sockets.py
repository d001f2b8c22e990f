"""Options of TCP sockets, for both sides.

Owns: how a peer that vanished without a word is found out. Must never enter: a protocol.
"""

from __future__ import annotations

import socket
from asyncio import BaseTransport

#: Seconds of silence before a peer's kernel is asked whether it is still there, between two questions, and
#: how many may go unanswered: a vanished peer is found out within a minute. An idle one answers by itself.
IDLE, INTERVAL, COUNT = 30, 10, 3


def keep_alive(transport: BaseTransport) -> None:
    """Let the kernel find out when the peer of ``transport`` is gone."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", IDLE), ("TCP_KEEPINTVL", INTERVAL), ("TCP_KEEPCNT", COUNT)):
        if hasattr(socket, option):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
