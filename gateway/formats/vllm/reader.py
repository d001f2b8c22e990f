"""Reading a worker's reply: which reader fits it, and the one for streams.

Owns: what an event means: tokens, finish, usage, errors, the end. Must never enter: changing an event but for
its id, I/O, a clock.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.base import Ids, Reader, ReplyFacts, ReplyHead, header
from gateway.formats.sse import EventScanner, payload
from gateway.formats.vllm.errors import in_band
from gateway.formats.vllm.ids import IdMapper
from gateway.formats.vllm.lenient import check_utf8
from gateway.formats.vllm.projection import Request
from gateway.formats.vllm.reply import Chunk, any_object, error_status, note_usage
from gateway.formats.vllm.unary import OpaqueReader, UnaryReader

_decode = msgspec.json.Decoder(Chunk).decode


def reader(request: Request, ids: Ids, head: ReplyHead) -> Reader:
    """The relay reader for a reply with this head."""
    kind = _media_type(head)
    encoded = header(head.headers, b"content-encoding") not in (None, b"", b"identity")
    if head.status != 200 or encoded or kind not in (b"text/event-stream", b"application/json"):
        # What cannot be read is held to spot a broken end, but for events, which nobody may delay.
        return OpaqueReader(streaming=head.status == 200 and kind == b"text/event-stream")
    mapper = IdMapper(ids) if ids.private else None
    if kind == b"application/json":
        return UnaryReader(mapper)
    return StreamReader(mapper, request.samples)


def _media_type(head: ReplyHead) -> bytes:
    value = header(head.headers, b"content-type") or b""
    return value.partition(b";")[0].strip().lower()


class StreamReader:
    """Passes whole events on as they come. ``samples`` is how many replies are told apart by index.

    The closing ``[DONE]`` is held until ``finish``: without a terminal event before it, an error event must
    come first.
    """

    __slots__ = (
        "_closing",
        "_ended",
        "_finished",
        "_mapper",
        "_samples",
        "_scanner",
        "_unsent",
        "facts",
        "identity",
    )

    streaming = True

    def __init__(self, mapper: IdMapper | None, samples: int) -> None:
        self.facts = ReplyFacts()
        self.identity = mapper is None
        self._mapper = mapper
        self._samples = samples
        self._scanner = EventScanner()
        self._finished: set[int] = set()
        self._closing = b""  # the [DONE] event as the worker wrote it
        self._unsent = b""  # good events that came in one read with a broken one
        self._ended = False

    def feed(self, data: bytes) -> bytes:
        if self._closing:
            return b""
        events = self._scanner.feed(data)
        good = 0
        try:
            for event in events:
                if self._is_closing(event):
                    self._closing = event
                    break
                good += 1
        except UpstreamMalformed:
            self._unsent = self._mapped(b"".join(events[:good]))
            raise
        out = b"".join(events if good == len(events) else events[:good])
        return out if self._mapper is None else self._mapper.whole(out)

    def finish(self) -> bytes:
        rest = b"" if self._closing else self._scanner.pending
        if rest:
            rest = self._last(rest)
        if not self.facts.terminal:
            raise UpstreamIncomplete("The worker's stream ended before the reply was finished")
        self._ended = True
        return self._mapped(rest) + self._closing

    def fail(self, error: GatewayError) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        if self._closing and self.facts.terminal:
            # The engine had said all there was to say before its connection broke.
            return self._closing
        return self._unsent + in_band(error)

    def _last(self, rest: bytes) -> bytes:
        """Judge bytes that no blank line closed; what comes back is to be passed on."""
        try:
            if self._is_closing(rest):
                self._closing = rest
                return b""
        except UpstreamMalformed as error:
            if not self.facts.terminal:
                raise UpstreamIncomplete("The worker's stream ended inside an event") from error
        return rest

    def _mapped(self, data: bytes) -> bytes:
        return data if self._mapper is None else self._mapper.whole(data)

    def _is_closing(self, event: bytes) -> bool:
        """Take one event in; True for ``[DONE]``. Raises UpstreamMalformed."""
        data = payload(event)
        if data is None:
            return False
        if data == b"[DONE]":
            return True
        try:
            check_utf8(data)
            chunk = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            chunk = Chunk.of(any_object(data))
        for choice in chunk.choices:
            if choice.token_ids:
                self.facts.tokens += len(choice.token_ids)
            if choice.finish_reason is not None:
                self._note_finish(choice.index, choice.finish_reason)
        if chunk.usage is not None:
            note_usage(self.facts, chunk.usage, total=not chunk.choices)
        if chunk.error is not None:
            self._note_error(chunk.error)
        return False

    def _note_finish(self, index: int, reason: str) -> None:
        if index not in self._finished:
            self._finished.add(index)
            self.facts.finish_reasons.append(reason)
            if len(self._finished) >= self._samples:
                self.facts.terminal = True

    def _note_error(self, error: Any) -> None:
        self.facts.terminal = True
        self.facts.error_status = error_status(error)
