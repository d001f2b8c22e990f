"""One address on which several processes listen.

Owns: its listening sockets, among which the kernel distributes new connections (SO_REUSEPORT). Must never
enter: who accepts the connections.
"""

from __future__ import annotations

import socket


class Port:
    """An address that the listening socket ``first`` has bound without SO_REUSEPORT.

    The first bind is exclusive, so a second gateway of the same user fails with "address in use" instead of
    silently taking a share of the connections.
    """

    def __init__(self, first: socket.socket, backlog: int) -> None:
        self._backlog = backlog
        self._unused: list[socket.socket] = [first]
        self._address = first.getsockname()
        self._kind = (first.family, first.type, first.proto)
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Bound but never listening: it gets no connections, and keeps the port while no process listens.
        self._reservation = self._bound()

    def listener(self) -> socket.socket:
        """Return a listening socket; the first time it is ``first``. Raises OSError."""
        if self._unused:
            return self._unused.pop()
        listener = self._bound()
        listener.listen(self._backlog)
        listener.setblocking(False)
        return listener

    def close(self) -> None:
        """Release the port. Listeners that were returned belong to their callers."""
        self._reservation.close()
        for listener in self._unused:
            listener.close()

    def _bound(self) -> socket.socket:
        bound = socket.socket(*self._kind)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            bound.bind(self._address)
        except OSError:
            bound.close()
            raise
        return bound
