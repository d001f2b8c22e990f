"""What the kernel knows of a TCP connection.

Owns: the layout of Linux's ``struct tcp_info``. Must never enter: what is concluded from it, HTTP.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import NamedTuple

# tcpi_state, a u8, and tcpi_bytes_acked, a u64 (since Linux 4.1).
_LAYOUT = struct.Struct("@B119xQ")
_CLOSE = 7


class TcpInfo(NamedTuple):
    """``reset``: the peer refused what it was sent. ``acknowledged`` is in bytes, a SYN counts as one."""

    reset: bool
    acknowledged: int


def tcp_info(transport: asyncio.BaseTransport) -> TcpInfo | None:
    """The state of a plain TCP connection; None where it cannot be known."""
    if sys.platform != "linux" or transport.get_extra_info("sslcontext") is not None:
        return None  # encrypted bytes cannot be compared with those that were written
    sock = transport.get_extra_info("socket")
    try:
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAYOUT.size)
    except OSError:
        return None
    if len(raw) < _LAYOUT.size:
        return None
    state, acknowledged = _LAYOUT.unpack(raw)
    return TcpInfo(state == _CLOSE, acknowledged)
