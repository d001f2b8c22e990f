"""The reader of unary replies, which are one JSON document.

Owns: reading the facts of a document, also of one that is too long to be buffered. Must never enter: events.

A quote inside a JSON string has a backslash before it, so the text that the scanner searches for occurs only
where it is a member. A scanned reply is not known to be JSON; its first and last bracket must match.
"""

from __future__ import annotations

import re

from gateway.errors import GatewayError, UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.contract import ReplyFacts
from gateway.formats.id_mapping import IdMapping
from gateway.formats.passthrough import ReplyBuffer
from gateway.formats.sglang.ending import ending_of
from gateway.formats.sglang.tally import Tally

_FACT = re.compile(
    rb'"(completion_tokens|prompt_tokens|cached_tokens)":(\d{1,15})[,}]'
    rb'|"finish_reason":\{"type":"([a-z_]{1,32})"'
)
# Longer than any text that matches.
_OVERLAP = 80
_BRACKETS = frozenset({b"{}", b"[]"})


class UnaryReader:
    """A reader that buffers one JSON document until it is complete; a document over the limit is relayed
    and scanned.
    """

    __slots__ = (
        *("_buffer", "_id_mapping", "_large", "_samples", "_samples_per_prompt", "_scanner"),
        *("facts", "identity"),
    )

    streaming = False

    def __init__(self, samples: int, samples_per_prompt: int, id_mapping: IdMapping | None) -> None:
        self.facts = ReplyFacts()
        self.identity = id_mapping is None
        self._samples = samples
        self._samples_per_prompt = samples_per_prompt
        self._buffer = ReplyBuffer()
        self._scanner: UnaryScanner | None = None  # set once the reply is too long to be buffered
        self._id_mapping = id_mapping

    def feed(self, data: bytes) -> bytes:
        data = self._buffer.feed(data)
        if not data:
            return b""
        if self._scanner is None:
            self._scanner = UnaryScanner(self.facts, self._samples_per_prompt)
            self._large = routing_data.LargeReply(self.facts)
        self._scanner.feed(data)
        data = self._large.feed(data)
        return data if self._id_mapping is None else self._id_mapping.feed(data)

    def finish(self) -> bytes:
        facts, id_mapping = self.facts, self._id_mapping
        if self._scanner is None:
            reply = self._buffer.take()
            tally = Tally(self._samples, self._samples_per_prompt, facts)
            tally.reply(reply)
            facts.ending = ending_of(facts, error_event=tally.error_event)
            reply = routing_data.extract_from_reply(reply, facts)
            facts.foreign = self._samples > 0 and not facts.finish_reasons and facts.error_status is None
            return reply if id_mapping is None else id_mapping.map(reply)
        if not self._scanner.complete():
            raise UpstreamMalformed("The worker sent a reply that is not valid JSON.")
        facts.terminal = True
        facts.ending = ending_of(facts, error_event=False)
        facts.foreign = not facts.finish_reasons
        rest = self._large.feed(b"", final=True)
        return rest if id_mapping is None else id_mapping.feed(rest) + id_mapping.flush()

    def fail(self, error: GatewayError) -> bytes:
        return b""


class UnaryScanner:
    """The facts of a document that is fed in pieces, added to ``facts``."""

    __slots__ = ("_facts", "_samples_per_prompt", "_first", "_last", "_prompts", "_tail")

    def __init__(self, facts: ReplyFacts, samples_per_prompt: int) -> None:
        self._facts = facts
        self._samples_per_prompt = samples_per_prompt
        self._prompts = {b"prompt_tokens": 0, b"cached_tokens": 0}
        self._tail = b""
        self._first = b""
        self._last = b""

    def feed(self, data: bytes) -> None:
        if text := data.strip():
            self._first = self._first or text[:1]
            self._last = text[-1:]
        data = self._tail + data
        done = 0
        for match in _FACT.finditer(data):
            done = match.end()
            self._note(*match.groups())
        self._tail = data[max(done, len(data) - _OVERLAP) :]

    def complete(self) -> bool:
        """Return True if the reply ended with the bracket that closes its first one."""
        return self._first + self._last in _BRACKETS

    def _note(self, name: bytes | None, count: bytes | None, reason: bytes | None) -> None:
        if reason is not None:
            self._facts.finish_reasons.append(reason.decode())
        elif name == b"completion_tokens":
            self._facts.tokens += int(count or 0)
        elif name is not None:
            self._note_prompt(name, int(count or 0))

    def _note_prompt(self, name: bytes, count: int) -> None:
        position = self._prompts[name]
        self._prompts[name] += 1
        if position % self._samples_per_prompt:
            # The samples of one prompt repeat its counts.
            return
        if name == b"prompt_tokens":
            self._facts.prompt_tokens = (self._facts.prompt_tokens or 0) + count
        else:
            self._facts.cached_tokens = (self._facts.cached_tokens or 0) + count
