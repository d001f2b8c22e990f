"""The state of a TCP connection as the Linux kernel reports it.

Owns: the layout of ``struct tcp_info``. Must never enter: conclusions from it, HTTP.
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
    """The part of ``struct tcp_info`` that is used.

    ``reset``: the peer refused what it was sent. ``acknowledged`` is in bytes; the SYN counts as one.
    """

    reset: bool
    acknowledged: int


def tcp_info(transport: asyncio.BaseTransport) -> TcpInfo | None:
    """Return the state of a plain TCP connection; None where it cannot be known."""
    if sys.platform != "linux" or transport.get_extra_info("sslcontext") is not None:
        return None  # the kernel counts encrypted bytes, the caller plain ones
    sock = transport.get_extra_info("socket")
    try:
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAYOUT.size)
    except OSError:
        return None
    if len(raw) < _LAYOUT.size:
        return None
    state, acknowledged = _LAYOUT.unpack(raw)
    return TcpInfo(state == _CLOSE, acknowledged)
