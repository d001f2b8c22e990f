"""The state of a TCP connection as the Linux kernel reports it.

Owns: the layout of ``struct tcp_info``. Must never enter: conclusions from it, HTTP.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import NamedTuple

# tcpi_state and tcpi_probes, u8; tcpi_unacked, tcpi_last_data_sent and tcpi_last_ack_recv, u32; and
# tcpi_bytes_acked, a u64 (since Linux 4.1).
_LAYOUT = struct.Struct("@B2xB20xI16xI8xI60xQ")
_CLOSE = 7


class TcpInfo(NamedTuple):
    """The part of ``struct tcp_info`` that is used.

    ``reset``: the peer refused what it was sent. ``acknowledged`` is in bytes, and the SYN counts as one;
    ``unacknowledged`` in segments that were sent. Over TLS both count what is encrypted. ``probes`` are those
    of an idle connection or a closed window that the peer has not answered. ``since_sent`` and
    ``since_answer`` are the seconds since data was last sent, even again, and since an acknowledgement came.
    """

    reset: bool
    acknowledged: int
    unacknowledged: int = 0
    probes: int = 0
    since_sent: float = 0.0
    since_answer: float = 0.0


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
    state, probes, unacknowledged, sent_ms, answer_ms, acknowledged = _LAYOUT.unpack(raw)
    return TcpInfo(state == _CLOSE, acknowledged, unacknowledged, probes, sent_ms / 1000, answer_ms / 1000)
