"""The readers of relayed replies.

Owns: complete events, the end of a stream, mapping the id back. Must never enter: a change of any other byte
except file paths in a server's error and a router's own data; I/O, a clock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.contract import Ids, Reader, ReplyHead
from gateway.formats.headers import encoded, media_type
from gateway.formats.id_mapping import IdMapping
from gateway.formats.json.blanked import MemberBlanker
from gateway.formats.json.windows import Span
from gateway.formats.large_event import OutputSteps, StreamRewriter, assemble, emit, find_data
from gateway.formats.passthrough import PassthroughReader, ReplyBuffer
from gateway.formats.paths import PathCutter, cut_paths
from gateway.formats.relayed.apis import StreamApi
from gateway.formats.relayed.errors import in_band
from gateway.formats.relayed.facts import ABSENT, Chunk, Notes, created_id, parse_chunk, summarize_chunk
from gateway.formats.sse import DEFAULT_EVENT_LIMIT, LARGE_EVENT_SIZE, EventScanner, LargeEvent, payload

_EVENTS = b"text/event-stream"
#: Bytes of a buffered reply that are looked through at once.
_PIECE = 64 * 1024
_JSON = b"application/json"
#: Replies of these types are unary. Any other type may be a stream, which must not be delayed.
_UNARY_TYPES = frozenset({b"", _JSON, b"text/plain", b"text/html"})


def reader(  # noqa: PLR0913 - what the route and the settings say of its replies
    ids: Ids,
    head: ReplyHead,
    *,
    passthrough: bool,
    event_limit: int = DEFAULT_EVENT_LIMIT,
    api: StreamApi | None = None,
    creates: bool = False,
) -> Reader:
    """Return the relay reader for a reply with this head.

    ``api`` is that of the route, None: no known one. ``creates``: a reply names what the request created.
    """
    kind, unreadable = media_type(head.headers), encoded(head.headers)
    good = head.status == 200 and not unreadable
    if good and kind == _EVENTS:
        return StreamReader(
            _id_mapping_for(ids), EventScanner(event_limit, LARGE_EVENT_SIZE), api, passthrough=passthrough
        )
    if good and kind == _JSON:
        return UnaryReader(_id_mapping_for(ids), creates=creates)
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
    """Relays one JSON document, whatever it contains.

    A router's data leaves a document that is buffered, and is blanked in a longer one, whose length may have
    been sent.
    """

    __slots__ = ("_blanker", "_buffer", "_creates", "_notes", "_id_mapping", "facts", "identity")

    streaming = False

    def __init__(self, id_mapping: IdMapping | None, *, creates: bool = False) -> None:
        self._notes = Notes()
        self._creates = creates
        self.facts = self._notes.facts
        self.identity = id_mapping is None
        self._buffer = ReplyBuffer()
        self._blanker: MemberBlanker | None = None
        self._id_mapping = id_mapping

    def feed(self, data: bytes) -> bytes:
        data = self._buffer.feed(data)
        if not data:
            return b""
        if self._blanker is None:
            self._blanker = MemberBlanker(routing_data.NAME, self._note_routing)
            self.facts.steps = self._begin(data)
            return b""
        return self._pass(self._blanker.feed(data))

    def _begin(self, data: bytes) -> OutputSteps:
        """Pass on what was buffered, in steps."""
        assert self._blanker is not None, "made before"
        for start in range(0, len(data), _PIECE):
            yield self._pass(self._blanker.feed(data[start : start + _PIECE]))

    def _pass(self, data: bytes) -> bytes:
        return data if self._id_mapping is None else self._id_mapping.feed(data)

    def _note_routing(self, value: bytes) -> None:
        with suppress(UpstreamMalformed):  # it is no router's
            routing_data.note(value, self.facts)

    def finish(self) -> bytes:
        if self._blanker is not None:
            out = self._pass(self._blanker.feed(b"", final=True))
            out += b"" if self._id_mapping is None else self._id_mapping.flush()
        else:
            out = self._buffer.take()
            if (reply := parse_chunk(out)) is not None:
                self._notes.note_reply(reply)
                if reply.routing_data is not ABSENT:
                    out = routing_data.extract_from_reply(out, self.facts)
            out = out if self._id_mapping is None else self._id_mapping.map(out)
            if self._creates:
                self._notes.note_created(created_id(out))
        self.facts.ending = self._notes.ending
        return out

    def fail(self, error: GatewayError) -> bytes:
        return b""


class StreamReader:
    """Relays complete events.

    A stream of a known API must end with a terminal event, ``[DONE]`` or the last event of its kind; any
    other stream needs at least one event. The closing ``[DONE]`` is held until ``finish``. A stream that
    breaks is ended by the error event of its API, or cut off if that is not known.
    """

    __slots__ = ("_closing", "_ended", "_notes", "_passthrough", "_scanner", "_seen", "_id_mapping", "facts")

    streaming = True
    identity = False

    def __init__(
        self,
        id_mapping: IdMapping | None,
        scanner: EventScanner,
        api: StreamApi | None = None,
        *,
        passthrough: bool,
    ) -> None:
        self._notes = Notes(api)
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
        if not facts.terminal and (self._notes.api is not None or not self._seen):
            raise UpstreamIncomplete("The worker's stream ended before the reply was finished")
        facts.terminal = True
        facts.ending = self._notes.ending
        self._ended = True
        return rest + self._closing

    def fail(self, error: GatewayError) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        if self.facts.terminal:
            # The engine had sent everything before its connection broke.
            self.facts.ending = self._notes.ending
            return self._closing
        return in_band(error, self._notes.api, self._notes.next_number)

    def _relay_large(self, large: LargeEvent) -> OutputSteps:
        """Relay a large event and the bytes after it, in steps."""
        event = yield from assemble(large)
        found = yield from find_data(event, lines=large.lines)
        through: list[StreamRewriter] = []
        cuts: Sequence[Span] = ()
        if found is not None:
            self._seen = True
            summary = yield from summarize_chunk(*found)
            chunk = None if summary is None else parse_chunk(summary.text)
            if chunk is not None and self._note(chunk):
                through.append(PathCutter())
            if summary is not None and summary.value is not None and found[0] is event:
                with suppress(UpstreamMalformed):  # it is no router's
                    routing_data.note(summary.value, self.facts)
                    cuts = summary.cuts
        if self._id_mapping is not None:
            through.append(self._id_mapping)
        yield from emit(event, cuts, through)
        if large.rest:
            yield self.feed(large.rest)

    def _relay(self, event: bytes, data: bytes) -> bytes:
        """Record the facts of an event, and return it as it is to be sent on."""
        self._seen = True
        chunk = parse_chunk(data)
        if chunk is None:
            return event
        if chunk.routing_data is not ABSENT:
            with suppress(UpstreamMalformed):  # it is no router's
                event, _ = routing_data.extract_from_event(event, data, self.facts)
        return cut_paths(event) if self._note(chunk) else event

    def _note(self, chunk: Chunk) -> bool:
        """Record the facts of an event. Return True if file paths must be removed from it."""
        self._notes.note_event(chunk)
        return bool(chunk.error) and (self.facts.error_status or 0) >= 500 and not self._passthrough
