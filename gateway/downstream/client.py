"""The client side of an exchange, as the handler sees it.

Owns: the ``Client`` protocol. Our own listener implements it in ``gateway.downstream.request.ServerRequest``,
any other ASGI server is adapted by ``gateway.downstream.asgi_client.AsgiClient``. Must never enter: a
dialect, workers, metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.errors import GatewayError
from gateway.formats.contract import Headers

#: Statuses whose replies have neither a body nor a Content-Length (RFC 9110, sections 15.3.5 and 15.4.5).
NO_BODY = frozenset({204, 304})


class Client(Protocol):
    """The client of one exchange.

    Once the client is known to have disconnected, each method that sends raises the reason: Cancelled, or
    ReplyUnread where the gateway closed the connection because the client did not read.
    """

    @property
    def headers(self) -> Headers:
        """The header lines of the request, names in lower case."""
        ...

    @property
    def accepted_at(self) -> float:
        """The time at which the head of the request was complete, in seconds (``time.monotonic``)."""
        ...

    @property
    def over_connection_limit(self) -> bool:
        """True if the connection exceeds the connection limit: it may only use routes that need no worker."""
        ...

    @property
    def query(self) -> bytes:
        """The query of the request target with its question mark; b"" without one."""
        ...

    async def read_body(self, limit: int) -> bytes:
        """Return the complete request body.

        Raises RequestTooLarge above ``limit`` bytes, BodyTimeout if the body stops arriving, Cancelled if the
        client disconnects, and OutOfMemory.
        """
        ...

    def on_disconnect(self, callback: Callable[[GatewayError], None]) -> None:
        """Call ``callback`` once, with the reason, if the client disconnects before ``ignore_disconnect``.

        The body must have been read.
        """
        ...

    def ignore_disconnect(self) -> None:
        """Forget the callback of ``on_disconnect``."""
        ...

    async def reply(self, status: int, headers: Headers, body: bytes, *, close: bool = False) -> None:
        """Send a complete reply with its Content-Length; ``close`` ends the connection after it."""
        ...

    def start(self, status: int, headers: Headers) -> None:
        """Commit the reply. Its head is sent with the first bytes of the body, or by ``flush``."""
        ...

    async def flush(self) -> None:
        """Send the head alone, because no bytes of the body are available yet."""
        ...

    async def send(self, data: bytes) -> None:
        """Send body bytes, at least one; wait while the client does not read them."""
        ...

    async def finish(self, data: bytes) -> None:
        """Send ``data``, which may be empty, and the end of the body."""
        ...

    def truncate(self) -> None:
        """End the reply so that the client sees that it is incomplete."""
        ...
