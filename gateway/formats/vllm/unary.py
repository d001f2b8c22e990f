"""The reader of unary replies, which are one JSON object.

Owns: reading the facts of a reply, also of one that is too long to be buffered. Must never enter: events,
changing a reply except for its id.
"""

from __future__ import annotations

import re

import msgspec

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.contract import ReplyFacts
from gateway.formats.passthrough import ReplyBuffer
from gateway.formats.vllm.ending import FAILED, ending_of
from gateway.formats.vllm.ids import RequestIdMapper
from gateway.formats.vllm.lenient import check_utf8, count_items
from gateway.formats.vllm.reply import Chunk, UnaryReply, Usage, any_object, error_status, note_usage

_SPACE = b" \t\r\n"
_MEMBER = re.compile(rb'"finish_reason":"(\w+)"|"usage":(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_OVERLAP = 512  # longest member looked for, in bytes


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
        self._scanner: _Scanner | None = None  # set once the reply is too long to be buffered

    def feed(self, data: bytes) -> bytes:
        data = self._buffer.feed(data)
        if not data:
            return b""
        if self._scanner is None:
            if not data.lstrip(_SPACE).startswith(b"{"):
                raise UpstreamMalformed("The worker's reply is not a JSON object")
            self._scanner = _Scanner(self.facts)
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


class _Scanner:
    """The facts of a reply that is fed in pieces.

    A quote inside a JSON string has a backslash before it, so no generated text looks like one of the members
    searched for.
    """

    __slots__ = ("_facts", "_tail", "closed")

    def __init__(self, facts: ReplyFacts) -> None:
        self._facts = facts
        self._tail = b""
        self.closed = False

    def feed(self, data: bytes) -> None:
        window = self._tail + data
        done = 0
        for match in _MEMBER.finditer(window):
            done = match.end()
            if match[1] is not None:
                self._facts.finish_reasons.append(match[1].decode())
            else:
                usage = Usage.of(any_object(match[2]))
                if usage is not None:
                    note_usage(self._facts, usage, total=True)
        self._tail = window[max(done, len(window) - _OVERLAP) :]
        if text := data.rstrip(_SPACE):
            self.closed = text.endswith(b"}")


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
