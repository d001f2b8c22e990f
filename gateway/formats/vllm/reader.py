"""The choice of the reader for a reply, and the relay reader for streams.

Owns: what an event means: tokens, finish, usage, errors, the end (vLLM 0.33.0). Must never enter: changing an
event except for its id, a router's own data and file paths in a server's own error; I/O, a clock.
"""

from __future__ import annotations

import msgspec

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.contract import Ids, Reader, ReplyFacts, ReplyHead
from gateway.formats.headers import encoded, media_type
from gateway.formats.passthrough import PassthroughReader
from gateway.formats.paths import cut_paths
from gateway.formats.sse import DEFAULT_EVENT_LIMIT, LARGE_EVENT_SIZE, EventScanner, payload
from gateway.formats.vllm.ending import ending_of
from gateway.formats.vllm.errors import in_band
from gateway.formats.vllm.ids import RequestIdMapper
from gateway.formats.vllm.large_event import relay_large_event
from gateway.formats.vllm.lenient import check_utf8
from gateway.formats.vllm.progress import Progress
from gateway.formats.vllm.reply import ABSENT, Chunk, any_object
from gateway.formats.vllm.request import Request
from gateway.formats.vllm.unary import UnaryReader

_EVENTS = b"text/event-stream"
_decode = msgspec.json.Decoder(Chunk).decode


def reader(
    request: Request,
    ids: Ids,
    head: ReplyHead,
    *,
    passthrough: bool = False,
    event_limit: int = DEFAULT_EVENT_LIMIT,
) -> Reader:
    """Return the reader that relays a reply with this head.

    ``passthrough``: an engine's messages about its own failures keep their file paths. ``event_limit`` is in
    bytes.
    """
    content_type, is_encoded = media_type(head.headers), encoded(head.headers)
    if head.status == 200 and not is_encoded:
        if content_type == _EVENTS:
            return StreamReader(
                _mapper(ids),
                request.samples,
                EventScanner(event_limit, LARGE_EVENT_SIZE),
                passthrough=passthrough,
            )
        if content_type == b"application/json":
            return UnaryReader(_mapper(ids))
    # Replies that cannot be parsed are buffered to detect a broken end, except events, which must not be
    # delayed.
    unread = PassthroughReader(
        head.status,
        streaming=head.status == 200 and content_type == _EVENTS,
        cut=head.status >= 500 and not passthrough and not is_encoded,
    )
    unread.facts.foreign = head.status == 200 and not is_encoded
    return unread


def is_stream(head: ReplyHead) -> bool:
    """Return True if the reply is a stream that can be parsed."""
    return head.status == 200 and media_type(head.headers) == _EVENTS and not encoded(head.headers)


def _mapper(ids: Ids) -> RequestIdMapper | None:
    return RequestIdMapper(ids) if ids.private else None


class StreamReader:
    """A reader that relays complete events as they come. ``samples`` is how many samples are distinguished by
    index.

    The closing ``[DONE]`` is kept until ``finish``: without a terminal event before it, an error event must
    come first. After the terminal event nothing can be malformed any more.
    """

    __slots__ = (
        "_closing",
        "_ended",
        "_mapper",
        "_passthrough",
        "_progress",
        "_scanner",
        "_unsent",
        "facts",
    )

    streaming = True
    identity = False  # a router's data and the paths in an error are taken out of events

    def __init__(
        self, mapper: RequestIdMapper | None, samples: int, scanner: EventScanner, *, passthrough: bool
    ) -> None:
        self._progress = Progress(samples)
        self.facts: ReplyFacts = self._progress.facts
        self._mapper = mapper
        self._passthrough = passthrough
        self._scanner = scanner
        self._closing = b""  # the [DONE] event as the worker wrote it
        self._unsent = b""  # complete events received in one read with a malformed one
        self._ended = False

    def feed(self, data: bytes) -> bytes:
        if self._closing:
            return b""
        relayed: list[bytes] = []
        try:
            for event, found in self._scanner.feed(data):
                passed = self._take(event, found)
                if passed is None:
                    break
                relayed.append(passed)
        except UpstreamMalformed:
            self._unsent = self._mapped(b"".join(relayed))
            self.facts.unsent = len(self._unsent)
            raise
        if not relayed and self._scanner.large is not None:
            self.facts.steps = relay_large_event(
                self._scanner.take_large_event(),
                self.facts,
                self._mapper,
                self._note,
                self.feed,
                passthrough=self._passthrough,
            )
        out = b"".join(relayed)
        return out if self._mapper is None else self._mapper.map(out)

    def finish(self) -> bytes:
        rest = b"" if self._closing else self._scanner.pending
        if rest:
            # No blank line ended these bytes.
            try:
                rest = self._take(rest, payload(rest)) or b""
            except UpstreamMalformed as error:
                raise UpstreamIncomplete("The worker's stream ended inside an event") from error
        if not self.facts.terminal:
            raise UpstreamIncomplete("The worker's stream ended before the reply was finished")
        self.facts.ending = ending_of(self.facts)
        self._ended = True
        return self._mapped(rest) + self._closing

    def fail(self, error: GatewayError) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        if self._closing and self.facts.terminal:
            # The reply was complete before the connection broke.
            self.facts.ending = ending_of(self.facts)
            return self._closing
        return self._unsent + in_band(error)

    def _mapped(self, data: bytes) -> bytes:
        return data if self._mapper is None else self._mapper.map(data)

    def _take(self, event: bytes, data: bytes | None) -> bytes | None:
        """Record the facts of an event and return what to relay of it; None for ``[DONE]``. Raises
        UpstreamMalformed.
        """
        if data is None:
            return event
        if data == b"[DONE]":
            self._closing = event
            return None
        try:
            check_utf8(data)
            chunk = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found = self._unusual_chunk(data)
            if found is None:
                return event
            chunk = found
        if chunk.routing_data is not ABSENT:
            event, _ = routing_data.extract_from_event(event, data, self.facts)
        return self._note(event, chunk)

    def _unusual_chunk(self, data: bytes) -> Chunk | None:
        """Return an object of another shape; None for what cannot be parsed but no longer matters."""
        try:
            return Chunk.of(any_object(data))
        except UpstreamMalformed:
            if self.facts.terminal:
                return None
            raise

    def _note(self, event: bytes, chunk: Chunk) -> bytes:
        """Record the facts of a chunk, and return its event as it is to be relayed."""
        facts = self.facts
        for choice in chunk.choices:
            if choice.token_ids:
                facts.tokens += len(choice.token_ids)
            if choice.finish_reason is not None:
                self._progress.finish(choice.index, choice.finish_reason)
        if chunk.usage is not None:
            self._progress.usage(chunk.usage, total=not chunk.choices)
        if chunk.error is not None and self._progress.error(chunk.error) >= 500 and not self._passthrough:
            return cut_paths(event)
        return event
