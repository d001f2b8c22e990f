"""The state of a TCP connection as the Linux kernel reports it.

Owns: the layout of ``struct tcp_info``. Must never enter: conclusions from it, HTTP.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import NamedTuple

# tcpi_state, a u8, tcpi_unacked, a u32, and tcpi_bytes_acked, a u64 (since Linux 4.1).
_LAYOUT = struct.Struct("@B23xI92xQ")
_CLOSE = 7


class TcpInfo(NamedTuple):
    """The part of ``struct tcp_info`` that is used.

    ``reset``: the peer refused what it was sent. ``acknowledged`` is in bytes, and the SYN counts as one;
    ``unacknowledged`` in segments that were sent. Over TLS both count what is encrypted.
    """

    reset: bool
    acknowledged: int
    unacknowledged: int = 0


def tcp_info(transport: asyncio.BaseTransport) -> TcpInfo | None:
    """Return the state of a TCP connection; None where it cannot be known."""
    if sys.platform != "linux":
        return None
    sock = transport.get_extra_info("socket")
    if sock is None:
        return None
    try:
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAYOUT.size)
    except OSError:
        return None
    if len(raw) < _LAYOUT.size:
        return None
    state, unacknowledged, acknowledged = _LAYOUT.unpack(raw)
    return TcpInfo(state == _CLOSE, acknowledged, unacknowledged)
