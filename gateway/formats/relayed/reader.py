"""Reading a worker's reply: which reader fits it, and the two that look into one.

Owns: whole events, the end of a stream, the id mapped back. Must never enter: changing anything else but the
paths in a server's own failure; I/O, a clock.
"""

from __future__ import annotations

import json

from gateway.errors import GatewayError, UpstreamIncomplete
from gateway.formats.base import Ids, Reader, ReplyHead
from gateway.formats.headers import encoded, media_type
from gateway.formats.opaque import Held, OpaqueReader
from gateway.formats.paths import cut_paths
from gateway.formats.relayed.errors import in_band
from gateway.formats.relayed.facts import Notes, told
from gateway.formats.sse import EventScanner, payload

_EVENTS = b"text/event-stream"
_JSON = b"application/json"
#: Replies of these types come at once; any other may be a stream of its kind, which nobody may delay.
_WHOLE = frozenset({b"", _JSON, b"text/plain", b"text/html"})


def reader(ids: Ids, head: ReplyHead, *, passthrough: bool) -> Reader:
    """The relay reader for a reply with this head."""
    kind, unreadable = media_type(head.headers), encoded(head.headers)
    good = head.status == 200 and not unreadable
    if good and kind == _EVENTS:
        return StreamReader(IdMapper(ids), passthrough=passthrough)
    if good and kind == _JSON:
        return WholeReader(IdMapper(ids))
    return OpaqueReader(
        head.status,
        streaming=head.status < 300 and kind not in _WHOLE,
        cut=head.status >= 500 and not passthrough and not unreadable,
    )


class IdMapper:
    """Puts the public id where the engine wrote the dispatch id, if they differ. That one is random then, so
    no text can hold it by chance."""

    __slots__ = ("_dispatch", "_public", "_tail")

    def __init__(self, ids: Ids) -> None:
        self._dispatch = ids.dispatch[0].encode() if ids.private else b""
        self._public = json.dumps(ids.public[0])[1:-1].encode()
        self._tail = b""

    def whole(self, data: bytes) -> bytes:
        """Map ``data``, which cuts no id in two."""
        return data.replace(self._dispatch, self._public) if self._dispatch else data

    def piece(self, data: bytes) -> bytes:
        """Map the next piece of a body that is cut anywhere; the end is held back until ``rest``."""
        if not self._dispatch:
            return data
        mapped = self.whole(self._tail + data)
        cut = max(0, len(mapped) - len(self._dispatch) + 1)
        self._tail = mapped[cut:]
        return mapped[:cut]

    def rest(self) -> bytes:
        """What ``piece`` still holds."""
        tail, self._tail = self._tail, b""
        return tail

    @property
    def idle(self) -> bool:
        return not self._dispatch


class WholeReader:
    """One JSON document, passed on whatever it is."""

    __slots__ = ("_held", "_mapper", "_notes", "facts", "identity")

    streaming = False

    def __init__(self, mapper: IdMapper) -> None:
        self._notes = Notes()
        self.facts = self._notes.facts
        self.identity = mapper.idle
        self._held = Held()
        self._mapper = mapper

    def feed(self, data: bytes) -> bytes:
        data = self._held.feed(data)
        return self._mapper.piece(data) if data else data

    def finish(self) -> bytes:
        if self._held.over:
            out = self._mapper.rest()
        else:
            out = self._held.take()
            if (reply := told(out)) is not None:
                self._notes.note_whole(reply)
            out = self._mapper.whole(out)
        self.facts.ending = self._notes.ending
        return out

    def fail(self, error: GatewayError) -> bytes:
        return b""


class StreamReader:
    """Passes whole events on as they come.

    A stream of the OpenAI API's kind has a terminal event, ``[DONE]`` or a last one of its own; any other may
    end as it likes, but for one without an event. The closing ``[DONE]`` is held until ``finish``.
    """

    __slots__ = ("_closing", "_ended", "_mapper", "_notes", "_passthrough", "_scanner", "_seen", "facts")

    streaming = True
    identity = False

    def __init__(self, mapper: IdMapper, *, passthrough: bool) -> None:
        self._notes = Notes()
        self.facts = self._notes.facts
        self._mapper = mapper
        self._passthrough = passthrough
        self._scanner = EventScanner()
        self._closing = b""
        self._ended = False
        self._seen = False  # some event with data

    def feed(self, data: bytes) -> bytes:
        if self._closing:
            return b""
        good: list[bytes] = []
        for event, found in self._scanner.feed(data):
            if found == b"[DONE]":
                self._closing = event
                self.facts.terminal = True
                break
            good.append(event if found is None else self._take(event, found))
        return self._mapper.whole(b"".join(good))

    def finish(self) -> bytes:
        facts, rest = self.facts, b"" if self._closing else self._scanner.pending
        if rest.strip():
            if payload(rest) != b"[DONE]":
                raise UpstreamIncomplete("The worker's stream ended inside an event")
            self._closing, rest = rest, b""
            facts.terminal = True
        if not facts.terminal and (self._notes.expecting or not self._seen):
            raise UpstreamIncomplete("The worker's stream ended before the reply was finished")
        facts.terminal = True
        facts.ending = self._notes.ending
        self._ended = True
        return rest + self._closing

    def fail(self, error: GatewayError) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        if self._closing:
            # The engine had said all there was to say before its connection broke.
            self.facts.ending = self._notes.ending
            return self._closing
        return in_band(error)

    def _take(self, event: bytes, data: bytes) -> bytes:
        """Note what an event says, and return it as it is to be passed on."""
        self._seen = True
        chunk = told(data)
        if chunk is None:
            return event
        self._notes.note_event(chunk)
        failed = chunk.error and (self.facts.error_status or 0) >= 500
        return cut_paths(event) if failed and not self._passthrough else event
