"""One address, listened on by several processes.

Owns: its listening sockets, among which the kernel spreads new connections. Must never enter: who accepts
them.
"""

from __future__ import annotations

import socket


class Port:
    """``first`` is the listening socket that claimed the address for this gateway alone.

    Claimed so, another gateway of the same user meets a taken port instead of silently getting its share.
    """

    def __init__(self, first: socket.socket, backlog: int) -> None:
        self._backlog = backlog
        self._unused: list[socket.socket] = [first]
        self._address = first.getsockname()
        self._kind = (first.family, first.type, first.proto)
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # It never listens, so nothing comes to it: it keeps the port while nobody else does.
        self._claim = self._bound()

    def listener(self) -> socket.socket:
        """One more listening socket. Raises OSError."""
        if self._unused:
            return self._unused.pop()
        listener = self._bound()
        listener.listen(self._backlog)
        listener.setblocking(False)
        return listener

    def close(self) -> None:
        """Give the claim up; the listeners that were handed out are their owners'."""
        self._claim.close()
        for listener in self._unused:
            listener.close()

    def _bound(self) -> socket.socket:
        made = socket.socket(*self._kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            made.bind(self._address)
        except OSError:
            made.close()
            raise
        return made
