"""What all connections to workers have in common.

Owns: their settings, the objects that they share, and how the pool of one worker is made. Must never enter:
one worker's connections (its pool's), limits on the number of connections.
"""

from __future__ import annotations

import ssl

from gateway.limits import DEFAULT_HEAD, HeadLimits
from gateway.loop.unreachable_peers import UnreachablePeers
from gateway.loop.write_batch import WriteBatch
from gateway.upstream.address import Address
from gateway.upstream.pool import Pool
from gateway.upstream.read_buffer import READ_SIZE
from gateway.upstream.resolver import Resolver
from gateway.upstream.via import Via


class Connector:
    """Makes the pools of workers. ``connect_timeout`` is in seconds, ``tls`` the context for https workers.

    ``head`` limits the heads of replies. ``via`` marks every request to a worker.
    """

    def __init__(
        self,
        connect_timeout: float,
        tls: ssl.SSLContext | None = None,
        *,
        resolver: Resolver | None = None,
        head: HeadLimits = DEFAULT_HEAD,
        via: Via | None = None,
    ) -> None:
        #: For all writes to workers and to clients.
        self.write_batch = WriteBatch()
        #: Likewise, for their connections.
        self.unreachable_peers = UnreachablePeers()
        #: The read buffer that all connections to workers share.
        self._read_buffer = bytearray(READ_SIZE)
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._resolver = resolver or Resolver()
        self._head = head
        self._via_line = b"" if via is None else via.line

    def pool_of(self, address: Address) -> Pool:
        """Return a new pool for the worker at ``address``."""
        if address.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        return Pool(
            address.host,
            address.port,
            self._tls if address.tls else None,
            self._connect_timeout,
            self._resolver,
            self.write_batch,
            self._head,
            self._read_buffer,
            self.unreachable_peers,
            own_lines=b"host: %b\r\n%b" % (address.authority, self._via_line),
        )
