"""One address for several listeners of one gateway only."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gateway.prefork.port import Port
from gateway.process.server import PortTaken, listen


@pytest.fixture
def first() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0, 64) as listener:
        yield listener


def test_connections_are_spread_among_all_listeners(first: socket.socket) -> None:
    port = Port(first, 64)
    listeners = [port.listener() for _ in range(3)]
    assert listeners[0] is first
    clients = [socket.create_connection(first.getsockname()) for _ in range(60)]
    accepted = [_accepted(listener) for listener in listeners]
    assert sum(accepted) == 60 and all(accepted)
    for each in (*clients, *listeners):
        each.close()
    port.close()


def _accepted(listener: socket.socket) -> int:
    count = 0
    with suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            count += 1
    return count


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
