"""Readers of replies that are not a stream of events.

Owns: holding a reply until it is whole, up to a limit. Must never enter: events.

A unary reply is a document whose ids may have to be mapped and whose end may turn out broken. An opaque one
is passed on unread: an error status, or an encoding the gateway cannot look into.
"""

from __future__ import annotations

from gateway.errors import GatewayError, UpstreamMalformed
from gateway.formats.base import Ending, ReplyFacts
from gateway.formats.paths import PathCutter
from gateway.formats.sglang.ending import ending_of
from gateway.formats.sglang.scan import Scan
from gateway.formats.sglang.swap import Swap
from gateway.formats.sglang.tally import Tally

#: Bytes of a reply that are held so that a broken one can still be answered by a status.
HOLD_LIMIT = 1024 * 1024


class _Held:
    """Bytes kept until they are over the limit."""

    __slots__ = ("_kept", "_size", "over")

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._size = 0
        self.over = False

    def feed(self, data: bytes) -> bytes:
        """b"" while under the limit; then all that was kept, and from there on what comes in."""
        if self.over:
            return data
        self._kept.append(data)
        self._size += len(data)
        self.over = self._size > HOLD_LIMIT
        return self.take() if self.over else b""

    def take(self) -> bytes:
        kept = b"".join(self._kept)
        self._kept.clear()
        return kept


class OpaqueReader:
    """Passes a reply on unread. ``broken`` is raised at its end, where it cannot be what was asked for.

    ``cut``: file paths are cut out of it.
    """

    def __init__(
        self,
        ending: Ending,
        *,
        streaming: bool = False,
        broken: GatewayError | None = None,
        cut: bool = False,
    ) -> None:
        self.streaming = streaming
        self.identity = not cut
        self.facts = ReplyFacts()
        self._ending = ending
        self._held = _Held()
        self._held.over = streaming
        self._broken = broken
        self._cutter = PathCutter() if cut else None

    def feed(self, data: bytes) -> bytes:
        data = self._held.feed(data)
        return data if self._cutter is None or not data else self._cutter.piece(data)

    def finish(self) -> bytes:
        self.facts.ending = self._ending
        if self._broken is not None:
            raise self._broken
        kept = self._held.take()
        return kept if self._cutter is None else self._cutter.piece(kept) + self._cutter.rest()

    def fail(self, error: GatewayError) -> bytes:
        return b""


class UnaryReader:
    """One JSON document, held until it is whole; over the limit it is relayed and only skimmed."""

    streaming = False

    def __init__(self, tally: Tally, fan: int, swap: Swap | None) -> None:
        self.identity = swap is None
        self._tally = tally
        self.facts = tally.facts
        self._held = _Held()
        self._scan = Scan(self.facts, fan)
        self._swap = swap

    def feed(self, data: bytes) -> bytes:
        data = self._held.feed(data)
        if not data:
            return b""
        self._scan.piece(data)
        return data if self._swap is None else self._swap.piece(data)

    def finish(self) -> bytes:
        try:
            reply = self._end_of_long() if self._held.over else self._end_of_held()
        except UpstreamMalformed:
            self.facts.ending = Ending.MALFORMED
            raise
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
