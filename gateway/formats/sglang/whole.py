"""The reader of replies that are one JSON document.

Owns: what is known of a document that is too long to be held. Must never enter: events.

Its ids may have to be mapped and its end may turn out broken.
"""

from __future__ import annotations

from gateway.errors import GatewayError, UpstreamMalformed
from gateway.formats.opaque import Held
from gateway.formats.sglang.ending import ending_of
from gateway.formats.sglang.scan import Scan
from gateway.formats.sglang.swap import Swap
from gateway.formats.sglang.tally import Tally


class UnaryReader:
    """One JSON document, held until it is whole; over the limit it is relayed and only skimmed."""

    streaming = False

    def __init__(self, tally: Tally, fan: int, swap: Swap | None) -> None:
        self.identity = swap is None
        self._tally = tally
        self.facts = tally.facts
        self._held = Held()
        self._scan = Scan(self.facts, fan)
        self._swap = swap

    def feed(self, data: bytes) -> bytes:
        data = self._held.feed(data)
        if not data:
            return b""
        self._scan.piece(data)
        return data if self._swap is None else self._swap.piece(data)

    def finish(self) -> bytes:
        reply = self._end_of_long() if self._held.over else self._end_of_held()
        self.facts.ending = ending_of(self.facts, error_event=self._tally.error_event)
        return reply

    def fail(self, error: GatewayError) -> bytes:
        return b""

    def _end_of_held(self) -> bytes:
        reply = self._held.take()
        self._tally.reply(reply)
        return reply if self._swap is None else self._swap.whole(reply)

    def _end_of_long(self) -> bytes:
        if not self._scan.whole():
            raise UpstreamMalformed("The worker sent a reply that is not valid JSON.")
        self.facts.terminal = True
        return b"" if self._swap is None else self._swap.rest()
