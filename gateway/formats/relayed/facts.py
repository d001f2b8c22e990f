"""The facts of a relayed reply: tokens, finish reasons, usage, errors.

Owns: reading these members of chunks and unary replies. Must never enter: bytes that are relayed, an error
for an unknown or odd member.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import msgspec

from gateway.formats.contract import Ending, ReplyFacts
from gateway.formats.json.steps import Steps
from gateway.formats.json.windows import Span
from gateway.formats.large_event import Shape, Summary, summarize
from gateway.formats.relayed.apis import StreamApi, api_of_event
from gateway.formats.relayed.errors import status_of
from gateway.formats.routing_data import NAME as ROUTING_DATA

#: The finish reasons of chat completions, then those of messages.
_PLAIN = {
    "stop": Ending.STOP,
    "length": Ending.LENGTH,
    "end_turn": Ending.STOP,
    "stop_sequence": Ending.STOP,
    "max_tokens": Ending.LENGTH,
}
#: The names of token counts: those of chat completions, then those of responses.
_PROMPT, _COMPLETION = ("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed", "message_stop"})
#: The members of a piece of a message that are no text.
_NO_TEXT = frozenset({"role", "type"})
#: The value of a member that a chunk does not have, where null is a value.
ABSENT: Any = msgspec.UNSET


class Chunk(msgspec.Struct):
    """The members that are read of a chunk or a unary reply; each may have any type."""

    choices: Any = None
    usage: Any = None
    error: Any = None
    type: Any = None
    code: Any = None
    delta: Any = None
    message: Any = None
    response: Any = None
    routing_data: Any = ABSENT
    sequence_number: Any = None
    stop_reason: Any = None


class _Named(msgspec.Struct):
    id: Any = None


_decode = msgspec.json.Decoder(Chunk).decode
_decode_named = msgspec.json.Decoder(_Named).decode
_decode_text = msgspec.json.Decoder(str).decode


def parse_chunk(data: bytes) -> Chunk | None:
    """Return the members of a JSON object, as Python's ``json`` reads it; None for any other text."""
    try:
        try:
            return _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.convert(json.loads(data), Chunk)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


_CHOICE: Shape = MappingProxyType(dict.fromkeys(("token_ids", "text", "delta", "finish_reason")))
_RESPONSE: Shape = MappingProxyType({"id": None, "usage": None, "error": None})
_MESSAGE: Shape = MappingProxyType({"usage": None})
_SHAPE: Shape = MappingProxyType(
    {
        **dict.fromkeys(Chunk.__struct_fields__),
        "choices": _CHOICE,
        "message": _MESSAGE,
        "response": _RESPONSE,
    }
)


def summarize_chunk(text: bytes, span: Span) -> Steps[Summary | None]:
    """Return the members of a large JSON object and where its routing data is, in steps; None for any other
    text.
    """
    try:
        return (yield from summarize(text, span, _SHAPE, cut=ROUTING_DATA))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def created_id(reply: bytes) -> Any:
    """Return the id of what a complete reply names as created: its ``id``, or the reply itself if it is text.

    None for any other reply.
    """
    try:
        return _decode_text(reply) if reply[:1] == b'"' else _decode_named(reply).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Notes:
    """Collects the ``facts`` of one reply.

    ``api`` is what a stream speaks, None if its route and its events so far do not tell. ``next_number`` is
    the sequence number of the next event, if its events are numbered.
    """

    __slots__ = ("api", "facts", "next_number")

    def __init__(self, api: StreamApi | None = None) -> None:
        self.facts = ReplyFacts()
        self.api = api
        self.next_number = 0

    def note_event(self, event: Chunk) -> None:
        """Record one event of a stream. A text counts as one token until an event contains the usage."""
        if isinstance(event.type, str):
            self._note_typed(event.type, event)
        if isinstance(event.choices, list) and event.choices:
            self.api = StreamApi.CHUNKS
            for choice in event.choices:
                self._note_choice(choice)
        self._note_rest(event)

    def _note_typed(self, type: str, event: Chunk) -> None:
        """Record an event of an API whose events have types."""
        facts, delta = self.facts, event.delta
        self.api = api_of_event(type) or self.api
        facts.terminal = facts.terminal or type in _LAST_EVENTS
        if isinstance(delta, str):
            facts.tokens += bool(delta) and self.api is StreamApi.RESPONSES
        elif isinstance(delta, dict) and self.api is StreamApi.MESSAGES:
            facts.tokens += type == "content_block_delta" and _has_content(delta)
            self._note_reason(delta.get("stop_reason"))
        if isinstance(event.sequence_number, int):
            self.next_number = event.sequence_number + 1
        if type == "response.created" and isinstance(event.response, dict):
            self.note_created(event.response.get("id"))
        elif type == "response.failed" and isinstance(event.response, dict):
            self._note_error(event.response.get("error"))
        elif type == "error" and self.api is not None and not event.error:
            self._note_error({"code": event.code})

    def note_reply(self, reply: Chunk) -> None:
        """Record a unary reply."""
        for choice in reply.choices if isinstance(reply.choices, list) else ():
            self._note_finish(choice)
        self._note_reason(reply.stop_reason)
        self._note_rest(reply)
        self.facts.terminal = True

    def note_created(self, id: Any) -> None:
        """Record the id of what the worker created, if it is one."""
        if isinstance(id, str) and id:
            self.facts.created = id

    @property
    def ending(self) -> Ending:
        """Return how a complete reply ended."""
        if self.facts.error_status is not None:
            return Ending.ERROR_EVENT
        reasons = frozenset(self.facts.finish_reasons)
        if not reasons:
            return Ending.OPAQUE
        return _PLAIN.get(next(iter(reasons)), Ending.OTHER) if len(reasons) == 1 else Ending.OTHER

    def _note_rest(self, chunk: Chunk) -> None:
        """Record usage and error."""
        self._note_usage(chunk.usage)
        for nested in (chunk.response, chunk.message):
            if isinstance(nested, dict):
                self._note_usage(nested.get("usage"))
        if chunk.error:
            self._note_error(chunk.error)

    def _note_error(self, error: Any) -> None:
        self.facts.error_status = status_of(error)
        self.facts.terminal = True

    def _note_choice(self, choice: Any) -> None:
        if not isinstance(choice, dict):
            return
        ids, delta = choice.get("token_ids"), choice.get("delta")
        if isinstance(ids, list):
            self.facts.tokens += len(ids)
        elif choice.get("text") or (isinstance(delta, dict) and _has_content(delta)):
            self.facts.tokens += 1
        self._note_finish(choice)

    def _note_finish(self, choice: Any) -> None:
        self._note_reason(choice.get("finish_reason") if isinstance(choice, dict) else None)

    def _note_reason(self, reason: Any) -> None:
        if isinstance(reason, str):
            self.facts.finish_reasons.append(reason)

    def _note_usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        self.facts.prompt_tokens = _number(usage, _PROMPT, self.facts.prompt_tokens)
        self.facts.tokens = max(self.facts.tokens, _number(usage, _COMPLETION, 0) or 0)
        for name in _DETAILS:
            if isinstance(details := usage.get(name), dict):
                self.facts.cached_tokens = _number(details, ("cached_tokens",), self.facts.cached_tokens)


def _has_content(delta: dict[str, Any]) -> bool:
    return any(value for name, value in delta.items() if name not in _NO_TEXT)


def _number(usage: dict[str, Any], names: tuple[str, ...], fallback: int | None) -> int | None:
    for name in names:
        value = usage.get(name)
        if type(value) is int and value >= 0:
            return value
    return fallback
