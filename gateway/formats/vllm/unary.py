"""The reader of unary replies, which are one JSON object.

Owns: reading the facts of a reply, also of one that is too long to be buffered. Must never enter: events,
changing a reply except for its id.
"""

from __future__ import annotations

import msgspec

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.contract import ReplyFacts
from gateway.formats.long_reply import SPACE, MemberScanner
from gateway.formats.passthrough import ReplyBuffer
from gateway.formats.vllm.ending import FAILED, ending_of
from gateway.formats.vllm.ids import RequestIdMapper
from gateway.formats.vllm.lenient import check_utf8, count_items
from gateway.formats.vllm.reply import Chunk, UnaryReply, Usage, any_object, error_status, note_usage


class UnaryReader:
    """A reader that buffers one JSON object until it is complete; an object over the limit is relayed and
    scanned.
    """

    __slots__ = ("_buffer", "_large", "_mapper", "_scanner", "facts", "identity")

    streaming = False

    def __init__(self, mapper: RequestIdMapper | None) -> None:
        self.facts = ReplyFacts()
        self.identity = mapper is None
        self._mapper = mapper
        self._buffer = ReplyBuffer()
        self._scanner: MemberScanner | None = None  # set once the reply is too long to be buffered

    def feed(self, data: bytes) -> bytes:
        data = self._buffer.feed(data)
        if not data:
            return b""
        if self._scanner is None:
            if not data.lstrip(SPACE).startswith(b"{"):
                raise UpstreamMalformed("The worker's reply is not a JSON object")
            self._scanner = MemberScanner(self.facts.finish_reasons.append, self._note_usage)
            self._large = routing_data.LargeReply(self.facts)
        self._scanner.feed(data)
        data = self._large.feed(data)
        return data if self._mapper is None else self._mapper.feed(data)

    def finish(self) -> bytes:
        out = self._end()
        facts = self.facts
        facts.ending = ending_of(facts)
        facts.foreign = not facts.finish_reasons and facts.error_status is None
        return out

    def fail(self, error: GatewayError) -> bytes:
        return b""

    def _note_usage(self, document: bytes) -> None:
        usage = Usage.of(any_object(document))
        if usage is not None:
            note_usage(self.facts, usage, total=True)

    def _end(self) -> bytes:
        if self._scanner is None:
            body = self._buffer.take()
            _note_reply(self.facts, body)
            body = routing_data.extract_from_reply(body, self.facts)
            return body if self._mapper is None else self._mapper.map(body)
        if not self._scanner.closed:
            raise UpstreamIncomplete("The worker's reply ended before it was complete")
        self.facts.terminal = True
        rest = self._large.feed(b"", final=True)
        return rest if self._mapper is None else self._mapper.feed(rest) + self._mapper.flush()


_REPLY = msgspec.json.Decoder(UnaryReply)


def _note_reply(facts: ReplyFacts, body: bytes) -> None:
    """Record the facts of a complete reply. Raises UpstreamMalformed if it is no JSON object."""
    try:
        check_utf8(body)
        reply = _REPLY.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        _note_unusual(facts, Chunk.of(any_object(body)))
        return
    for choice in reply.choices:
        facts.tokens += count_items(choice.token_ids) or 0
        if choice.finish_reason is not None:
            facts.finish_reasons.append(choice.finish_reason)
    _note_end(facts, reply.usage, reply.error)


def _note_unusual(facts: ReplyFacts, reply: Chunk) -> None:
    for choice in reply.choices:
        facts.tokens += len(choice.token_ids or ())
        if choice.finish_reason is not None:
            facts.finish_reasons.append(choice.finish_reason)
    _note_end(facts, reply.usage, reply.error)


def _note_end(facts: ReplyFacts, usage: Usage | None, error: object) -> None:
    facts.terminal = True
    if FAILED in facts.finish_reasons:
        facts.error_status = 500
    if usage is not None:
        note_usage(facts, usage, total=True)
    if error is not None:
        facts.error_status = error_status(error)
