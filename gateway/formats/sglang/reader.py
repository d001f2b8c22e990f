"""The relay reader: which kind a reply needs, and the one for streams.

Owns: passing events on as they come, knowing whether the engine said it was finished. Must never enter: a
change to an event beyond the id, what a document means (tally.py).
"""

from __future__ import annotations

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.base import Ids, Reader, ReplyHead, header
from gateway.formats.sglang.errors import in_band
from gateway.formats.sglang.projection import SglangRequest
from gateway.formats.sglang.swap import Swap, swap_for
from gateway.formats.sglang.tally import Tally
from gateway.formats.sglang.whole import OpaqueReader, UnaryReader
from gateway.formats.sse import EventScanner, payload

_UNREADABLE = "The worker answered with something other than a stream of events."


def reader(request: SglangRequest, ids: Ids, head: ReplyHead) -> Reader:
    """The reader for a reply with this head."""
    if head.status != 200:
        return OpaqueReader()
    encoding = (header(head.headers, b"content-encoding") or b"identity").strip().lower()
    if encoding != b"identity":
        return OpaqueReader(streaming=request.stream)
    kind = (header(head.headers, b"content-type") or b"").lower()
    swap = swap_for(request, ids)
    if b"text/event-stream" in kind or (request.stream and not kind):
        return StreamReader(request.samples, request.fan, swap)
    if request.stream and b"json" not in kind:
        return OpaqueReader(broken=UpstreamMalformed(_UNREADABLE))
    return UnaryReader(request.samples, request.fan, swap)


class StreamReader:
    """Relays events; ``[DONE]`` only once the engine has said that every sample is finished."""

    streaming = True
    # What follows [DONE] is dropped and an error may be added, so a length would not stay true.
    identity = False

    def __init__(self, samples: int, fan: int, swap: Swap | None) -> None:
        self._tally = Tally(samples, fan)
        self.facts = self._tally.facts
        self._scanner = EventScanner()
        self._swap = swap
        self._over = False
        self._done_given = False
        self._good = b""

    def feed(self, data: bytes) -> bytes:
        if self._over:
            return b""
        events = self._scanner.feed(data)
        if len(events) == 1:
            return self._pass(events[0])
        return self._pass_all(events)

    def finish(self) -> bytes:
        if not self.facts.terminal:
            raise UpstreamIncomplete("The worker's stream ended before the generation did.")
        return b"" if self._over else self._mapped(self._scanner.pending)

    def fail(self, error: GatewayError) -> bytes:
        return b"" if self._done_given else self._good + in_band(error)

    def _pass_all(self, events: list[bytes]) -> bytes:
        passed: list[bytes] = []
        try:
            for event in events:
                if self._over:
                    break
                passed.append(self._pass(event))
        except UpstreamMalformed:
            # The events before the bad one are whole: they leave with the error.
            self._good = b"".join(passed)
            raise
        return b"".join(passed)

    def _pass(self, event: bytes) -> bytes:
        data = payload(event)
        if data is None:
            return event
        if data == b"[DONE]":
            return self._done(event)
        self._tally.event(data)
        return event if self._swap is None else self._swap.whole(event)

    def _done(self, event: bytes) -> bytes:
        """Nothing follows; without a terminal, finish will tell that the stream broke off."""
        self._over = True
        self._done_given = self.facts.terminal
        return event if self._done_given else b""

    def _mapped(self, data: bytes) -> bytes:
        return data if self._swap is None else self._swap.whole(data)
