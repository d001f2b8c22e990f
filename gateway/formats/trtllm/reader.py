"""The readers of replies: what a stream's events and a unary reply say, and their relay as they came.

Owns: the meaning of a reply: tokens, finish, usage, errors, the end. Must never enter: changing bytes except
for file paths in a server's own error; I/O, a clock.

The engine makes up the ids in its replies, so none is mapped. A stream is complete when ``[DONE]`` came: each
step of a request with several samples repeats all of them, so a sample that finished says nothing of the
others.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.contract import Ending, Reader, ReplyFacts, ReplyHead
from gateway.formats.headers import encoded, media_type
from gateway.formats.long_reply import SPACE, MemberScanner
from gateway.formats.passthrough import PassthroughReader, ReplyBuffer
from gateway.formats.paths import cut_paths
from gateway.formats.sse import DEFAULT_EVENT_LIMIT, EventScanner, payload
from gateway.formats.trtllm.errors import in_band, status_in_band

DONE = b"[DONE]"
_EVENTS = b"text/event-stream"
_ENDINGS = {"stop": Ending.STOP, "length": Ending.LENGTH, "cancelled": Ending.CLIENT_ABORT}


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class Choice(msgspec.Struct, gc=False):
    index: int = 0
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class Reply(msgspec.Struct, gc=False):
    """One event of a stream, or a unary reply, as far as it is read."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(Reply).decode


def read_reply(data: bytes) -> Reply:
    """Return what ``data`` says, read as Python's ``json`` reads it. Raises UpstreamMalformed for what is no
    reply of the engine.
    """
    try:
        try:
            if not data.isascii():
                data.decode()  # msgspec does not decode the strings it skips
            return _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.convert(json.loads(data), Reply)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UpstreamMalformed("The worker sent something that is no completion", cause=error) from error


class Progress:
    """The facts of a reply, found in its events one after another or in a unary reply at once."""

    __slots__ = ("_finished", "counted", "facts")

    def __init__(self) -> None:
        self.facts = ReplyFacts()
        #: The tokens that usage counts, 0 without usage.
        self.counted = 0
        self._finished: set[int] = set()

    def note(self, reply: Reply, *, unary: bool = False) -> None:
        """Record what ``reply`` says. Usage beside choices of a stream is of a sample, so it is not added."""
        facts = self.facts
        for choice in reply.choices:
            facts.tokens += len(choice.token_ids or ())
            if choice.finish_reason is not None and choice.index not in self._finished:
                self._finished.add(choice.index)
                facts.finish_reasons.append(choice.finish_reason)
        if reply.usage is not None and (unary or not reply.choices):
            self.count(reply.usage)
        if reply.error is not None:
            facts.error_status = status_in_band(reply.error)
            facts.terminal = True

    def count(self, usage: Usage) -> None:
        """Add the usage of one prompt; a stream has an event of it for each."""
        facts, details = self.facts, usage.prompt_tokens_details
        if usage.prompt_tokens is not None:
            facts.prompt_tokens = (facts.prompt_tokens or 0) + usage.prompt_tokens
        if details is not None and details.cached_tokens is not None:
            facts.cached_tokens = (facts.cached_tokens or 0) + details.cached_tokens
        self.counted += usage.completion_tokens or 0
        facts.tokens = max(facts.tokens, self.counted)

    def end(self) -> None:
        """Derive the ending of a complete reply."""
        reasons = frozenset(self.facts.finish_reasons)
        if self.facts.error_status is not None:
            self.facts.ending = Ending.ERROR_EVENT
        elif "cancelled" in reasons:
            self.facts.ending = Ending.CLIENT_ABORT
        else:
            only = next(iter(reasons)) if len(reasons) == 1 else ""
            self.facts.ending = _ENDINGS.get(only, Ending.OTHER)


def is_stream(head: ReplyHead) -> bool:
    """Return True if the reply is a stream that can be parsed."""
    return head.status == 200 and media_type(head.headers) == _EVENTS and not encoded(head.headers)


def reader(head: ReplyHead, *, passthrough: bool = False, event_limit: int = DEFAULT_EVENT_LIMIT) -> Reader:
    """Return the reader that relays a reply with this head.

    ``passthrough``: an engine's messages about its own failures keep their file paths. ``event_limit`` is in
    bytes.
    """
    if is_stream(head):
        return StreamReader(EventScanner(event_limit), passthrough=passthrough)
    content_type, is_encoded = media_type(head.headers), encoded(head.headers)
    if head.status == 200 and not is_encoded and content_type == b"application/json":
        return UnaryReader()
    return PassthroughReader(
        head.status,
        streaming=head.status == 200 and content_type == _EVENTS,
        cut=head.status >= 500 and not passthrough and not is_encoded,
    )


class StreamReader:
    """Relays complete events as they come; ``[DONE]`` is kept until ``finish``.

    The engine sends a ``[DONE]`` after an error, too, even if other prompts of the request go on after it;
    for clients the first one is the end, so the rest is dropped. After an error nothing can be malformed.
    """

    __slots__ = ("_closing", "_ended", "_passthrough", "_progress", "_scanner", "_unsent", "facts")

    streaming = True
    identity = False  # paths are taken out of errors

    def __init__(self, scanner: EventScanner, *, passthrough: bool) -> None:
        self._progress = Progress()
        self.facts = self._progress.facts
        self._passthrough = passthrough
        self._scanner = scanner
        self._closing = b""
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
            self._unsent = b"".join(relayed)
            self.facts.unsent = len(self._unsent)
            raise
        return b"".join(relayed)

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
        self._progress.end()
        self._ended = True
        return rest + self._closing

    def fail(self, error: GatewayError) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        if self._closing:
            # The reply was complete before the connection broke.
            self._progress.end()
            return self._closing
        return self._unsent + in_band(error)

    def _take(self, event: bytes, data: bytes | None) -> bytes | None:
        """Record the facts of an event and return what to relay of it; None for ``[DONE]``. Raises
        UpstreamMalformed.
        """
        if data is None:
            return event
        if data == DONE:
            self._closing = event
            self.facts.terminal = True
            return None
        try:
            if routing_data.MARK in data:
                event, data = routing_data.extract_from_event(event, data, self.facts)
            if not data:
                return b""
            reply = read_reply(data)
        except UpstreamMalformed:
            if self.facts.terminal:
                return event
            raise
        self._progress.note(reply)
        return event if reply.error is None or self._passthrough else cut_paths(event)


class UnaryReader:
    """Buffers one JSON object until it is complete; one over the limit is relayed, and its end is read."""

    __slots__ = ("_buffer", "_large", "_progress", "_scanner", "facts")

    streaming = False
    identity = True

    def __init__(self) -> None:
        self._progress = Progress()
        self.facts = self._progress.facts
        self._buffer = ReplyBuffer()
        self._scanner: MemberScanner | None = None  # set once the reply is too long to be buffered

    def feed(self, data: bytes) -> bytes:
        data = self._buffer.feed(data)
        if data:
            if self._scanner is None:
                if not data.lstrip(SPACE).startswith(b"{"):
                    raise UpstreamMalformed("The worker's reply is not a JSON object")
                self._scanner = MemberScanner(self.facts.finish_reasons.append, self._note_usage)
                self._large = routing_data.LargeReply(self.facts)
            self._scanner.feed(data)
            data = self._large.feed(data)
        return data

    def finish(self) -> bytes:
        body = self._buffer.take()
        if self._scanner is None:
            self._progress.note(read_reply(body), unary=True)
            body = routing_data.extract_from_reply(body, self.facts)
        elif not self._scanner.closed:
            raise UpstreamIncomplete("The worker's reply ended before it was complete")
        else:
            body = self._large.feed(b"", final=True)
        self.facts.terminal = True
        self._progress.end()
        return body

    def fail(self, error: GatewayError) -> bytes:
        return b""

    def _note_usage(self, document: bytes) -> None:
        self._progress.note(read_reply(b'{"usage":%b}' % document))
