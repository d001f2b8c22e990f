"""The rule by which a request counts as provably not received by its worker.

Owns: promise P10: a request is sent to a second worker only if the first one provably did not receive it.
Must never enter: HTTP, what is done with the answer.
"""

from __future__ import annotations

import asyncio
import time

from gateway.loop.tcp_info import TcpInfo, tcp_info

#: Seconds the TCP of a peer that closed may take to refuse what it was sent: a few round trips.
REFUSAL_WAIT = 0.25


class ReceiptProof:
    """The evidence of one connection on whether its worker received the current request.

    No byte of a request can have reached a worker if three things are true. The worker had closed its side (a
    reset alone may follow a request that was read and not yet acknowledged). It acknowledged none of the
    bytes. And its TCP refused them with a reset, as it does when no process reads any more (the TCP of a
    worker that closed only its sending side would have taken them). Linux reports the last two: see
    ``tcp_info``.
    """

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        #: The kernel counts encrypted bytes, and ``request_bytes`` counts plain ones.
        self._tls = transport.get_extra_info("sslcontext") is not None
        #: A byte of the reply arrived.
        self.answered = False
        #: The worker will send no more.
        self.peer_closed = False
        #: Bytes of the current request, and of all requests before it on this connection.
        self.request_bytes = 0
        self._earlier_bytes = 0

    def next_request(self) -> None:
        """Forget the current request: its reply was complete."""
        self._earlier_bytes += self.request_bytes
        self.request_bytes = 0
        self.answered = self.peer_closed = False

    def may_be_received(self) -> bool:
        """Return True if the worker may have received some of the request, so that no proof can follow."""
        if self.answered:
            return True
        info = self._info()
        return info is None or self._acknowledged(info)

    def can_be_decided(self) -> bool:
        """Return True if waiting with ``decided`` may bring a proof: the worker closed without any answer."""
        return not self.answered and self._info() is not None

    async def decided(self) -> None:
        """Return as soon as the worker's TCP acknowledged or refused the request, or after REFUSAL_WAIT."""
        deadline = time.monotonic() + REFUSAL_WAIT
        while time.monotonic() <= deadline:
            info = self._info()
            if info is None or info.reset or self._acknowledged(info):
                return
            await asyncio.sleep(0.002)

    def not_received(self) -> bool:
        """Return True only if no byte of the request can have reached the worker."""
        if self.answered or not self.peer_closed:
            return False
        info = self._info()
        return info is not None and info.reset and not self._acknowledged(info)

    def _info(self) -> TcpInfo | None:
        return None if self._tls else tcp_info(self._transport)

    def _acknowledged(self, info: TcpInfo) -> bool:
        return info.acknowledged > 1 + self._earlier_bytes  # the SYN counts as one byte
