"""The readers of relayed replies.

Owns: complete events, the end of a stream, mapping the id back. Must never enter: a change of any other byte
except file paths in a server's error; I/O, a clock.
"""

from __future__ import annotations

import json

from gateway.errors import GatewayError, UpstreamIncomplete
from gateway.formats.contract import Ids, Reader, ReplyHead
from gateway.formats.headers import encoded, media_type
from gateway.formats.id_mapping import IdMapping
from gateway.formats.large_event import OutputSteps, StreamRewriter, assemble, emit, find_data
from gateway.formats.passthrough import PassthroughReader, ReplyBuffer
from gateway.formats.paths import PathCutter, cut_paths
from gateway.formats.relayed.errors import in_band
from gateway.formats.relayed.facts import Chunk, Notes, parse_chunk, parse_chunk_in_steps
from gateway.formats.sse import DEFAULT_EVENT_LIMIT, LARGE_EVENT_SIZE, EventScanner, LargeEvent, payload

_EVENTS = b"text/event-stream"
_JSON = b"application/json"
#: Replies of these types are unary. Any other type may be a stream, which must not be delayed.
_UNARY_TYPES = frozenset({b"", _JSON, b"text/plain", b"text/html"})


def reader(ids: Ids, head: ReplyHead, *, passthrough: bool, event_limit: int = DEFAULT_EVENT_LIMIT) -> Reader:
    """Return the relay reader for a reply with this head."""
    kind, unreadable = media_type(head.headers), encoded(head.headers)
    good = head.status == 200 and not unreadable
    if good and kind == _EVENTS:
        return StreamReader(
            _id_mapping_for(ids), EventScanner(event_limit, LARGE_EVENT_SIZE), passthrough=passthrough
        )
    if good and kind == _JSON:
        return UnaryReader(_id_mapping_for(ids))
    return PassthroughReader(
        head.status,
        streaming=head.status < 300 and kind not in _UNARY_TYPES,
        cut=head.status >= 500 and not passthrough and not unreadable,
    )


def _id_mapping_for(ids: Ids) -> IdMapping | None:
    if not ids.private:
        return None
    # Without the quotes, because engines put a prefix before the id.
    return IdMapping({ids.dispatch[0].encode(): json.dumps(ids.public[0])[1:-1].encode()})


class UnaryReader:
    """Relays one JSON document, whatever it contains."""

    __slots__ = ("_buffer", "_notes", "_id_mapping", "facts", "identity")

    streaming = False

    def __init__(self, id_mapping: IdMapping | None) -> None:
        self._notes = Notes()
        self.facts = self._notes.facts
        self.identity = id_mapping is None
        self._buffer = ReplyBuffer()
        self._id_mapping = id_mapping

    def feed(self, data: bytes) -> bytes:
        data = self._buffer.feed(data)
        return data if self._id_mapping is None else self._id_mapping.feed(data)

    def finish(self) -> bytes:
        if self._buffer.over:
            out = b"" if self._id_mapping is None else self._id_mapping.flush()
        else:
            out = self._buffer.take()
            if (reply := parse_chunk(out)) is not None:
                self._notes.note_reply(reply)
            out = out if self._id_mapping is None else self._id_mapping.map(out)
        self.facts.ending = self._notes.ending
        return out

    def fail(self, error: GatewayError) -> bytes:
        return b""


class StreamReader:
    """Relays complete events.

    A stream of the OpenAI API must end with a terminal event, ``[DONE]`` or the last event of its kind; any
    other stream needs at least one event. The closing ``[DONE]`` is held until ``finish``.
    """

    __slots__ = ("_closing", "_ended", "_notes", "_passthrough", "_scanner", "_seen", "_id_mapping", "facts")

    streaming = True
    identity = False

    def __init__(self, id_mapping: IdMapping | None, scanner: EventScanner, *, passthrough: bool) -> None:
        self._notes = Notes()
        self.facts = self._notes.facts
        self._id_mapping = id_mapping
        self._passthrough = passthrough
        self._scanner = scanner
        self._closing = b""
        self._ended = False
        self._seen = False  # at least one event with data was read

    def feed(self, data: bytes) -> bytes:
        if self._closing:
            return b""
        good: list[bytes] = []
        for event, found in self._scanner.feed(data):
            if found == b"[DONE]":
                self._closing = event
                self.facts.terminal = True
                break
            good.append(event if found is None else self._relay(event, found))
        if not good and self._scanner.large is not None:
            self.facts.steps = self._relay_large(self._scanner.take_large_event())
        out = b"".join(good)
        return out if self._id_mapping is None else self._id_mapping.map(out)

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
            # The engine had sent everything before its connection broke.
            self.facts.ending = self._notes.ending
            return self._closing
        return in_band(error)

    def _relay_large(self, large: LargeEvent) -> OutputSteps:
        """Relay a large event and the bytes after it, in steps."""
        event = yield from assemble(large)
        found = yield from find_data(event, lines=large.lines)
        through: list[StreamRewriter] = []
        if found is not None:
            self._seen = True
            chunk = yield from parse_chunk_in_steps(*found)
            if chunk is not None and self._note(chunk):
                through.append(PathCutter())
        if self._id_mapping is not None:
            through.append(self._id_mapping)
        yield from emit(event, (), through)
        if large.rest:
            yield self.feed(large.rest)

    def _relay(self, event: bytes, data: bytes) -> bytes:
        """Record the facts of an event, and return it as it is to be sent on."""
        self._seen = True
        chunk = parse_chunk(data)
        return cut_paths(event) if chunk is not None and self._note(chunk) else event

    def _note(self, chunk: Chunk) -> bool:
        """Record the facts of an event. Return True if file paths must be removed from it."""
        self._notes.note_event(chunk)
        return bool(chunk.error) and (self.facts.error_status or 0) >= 500 and not self._passthrough
