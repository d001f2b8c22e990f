"""The reader of replies that are one JSON document.

Owns: what is known of a document that is too long to be held. Must never enter: events.

Its ids may have to be mapped and its end may turn out broken.
"""

from __future__ import annotations

from gateway.errors import GatewayError, UpstreamMalformed
from gateway.formats.contract import ReplyFacts
from gateway.formats.id_mapping import IdMapping
from gateway.formats.passthrough import Held
from gateway.formats.sglang.ending import ending_of
from gateway.formats.sglang.scan import Scan
from gateway.formats.sglang.tally import Tally


class UnaryReader:
    """One JSON document, held until it is whole; over the limit it is relayed and only skimmed."""

    __slots__ = ("_fan", "_held", "_samples", "_scan", "_swap", "facts", "identity")

    streaming = False

    def __init__(self, samples: int, fan: int, swap: IdMapping | None) -> None:
        self.facts = ReplyFacts()
        self.identity = swap is None
        self._samples = samples
        self._fan = fan
        self._held = Held()
        self._scan: Scan | None = None  # there once the reply is too long to be held
        self._swap = swap

    def feed(self, data: bytes) -> bytes:
        data = self._held.feed(data)
        if not data:
            return b""
        if self._scan is None:
            self._scan = Scan(self.facts, self._fan)
        self._scan.piece(data)
        return data if self._swap is None else self._swap.piece(data)

    def finish(self) -> bytes:
        return self._end_of_held() if self._scan is None else self._end_of_long(self._scan)

    def fail(self, error: GatewayError) -> bytes:
        return b""

    def _end_of_held(self) -> bytes:
        reply = self._held.take()
        tally = Tally(self._samples, self._fan, self.facts)
        tally.reply(reply)
        self.facts.ending = ending_of(self.facts, error_event=tally.error_event)
        return reply if self._swap is None else self._swap.whole(reply)

    def _end_of_long(self, scan: Scan) -> bytes:
        if not scan.whole():
            raise UpstreamMalformed("The worker sent a reply that is not valid JSON.")
        self.facts.terminal = True
        self.facts.ending = ending_of(self.facts, error_event=False)
        return b"" if self._swap is None else self._swap.rest()
