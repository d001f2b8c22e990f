"""One address for several listeners of one gateway only."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gateway.prefork.port import Port
from gateway.process.server import PortTaken, listen


@pytest.fixture
def first() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0, 64) as listener:
        yield listener


def test_port_is_taken_for_others_and_kept_while_nobody_listens(first: socket.socket) -> None:
    """All processes may have exited for a moment; the next listener gets the same port."""
    port = Port(first, 64)
    address: tuple[str, int] = first.getsockname()
    with port.listener(), port.listener(), pytest.raises(PortTaken):
        listen(*address, 64)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    with port.listener() as second:
        assert second.getsockname() == address
        socket.create_connection(address).close()
    port.close()
    listen(*address, 64).close()
