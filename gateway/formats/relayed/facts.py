"""The facts of a relayed reply: tokens, finish reasons, usage, errors.

Owns: reading these members of chunks and unary replies. Must never enter: bytes that are relayed, an error
for an unknown or odd member.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import msgspec

from gateway.formats.contract import Ending, ReplyFacts
from gateway.formats.json.steps import Steps
from gateway.formats.json.windows import Span
from gateway.formats.large_event import Shape, summarize

_PLAIN = {"stop": Ending.STOP, "length": Ending.LENGTH}
#: The names of token counts: those of chat completions, then those of responses.
_PROMPT, _COMPLETION = ("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class Chunk(msgspec.Struct):
    """The members that are read of a chunk or a unary reply; each may have any type."""

    choices: Any = None
    usage: Any = None
    error: Any = None
    type: Any = None
    delta: Any = None
    response: Any = None


_decode = msgspec.json.Decoder(Chunk).decode


def parse_chunk(data: bytes) -> Chunk | None:
    """Return the members of a JSON object, None for any other text."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


_CHOICE: Shape = MappingProxyType(dict.fromkeys(("token_ids", "text", "delta", "finish_reason")))
_RESPONSE: Shape = MappingProxyType({"usage": None})
_SHAPE: Shape = MappingProxyType(
    {**dict.fromkeys(Chunk.__struct_fields__), "choices": _CHOICE, "response": _RESPONSE}
)


def parse_chunk_in_steps(text: bytes, span: Span) -> Steps[Chunk | None]:
    """Do what ``parse_chunk`` does for a large text, in steps."""
    try:
        found = yield from summarize(text, span, _SHAPE)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return parse_chunk(found.text)


class Notes:
    """Collects the ``facts`` of one reply.

    ``expecting`` is True once a chunk was read of a kind of stream that ends with a terminal event.
    """

    __slots__ = ("expecting", "facts")

    def __init__(self) -> None:
        self.facts = ReplyFacts()
        self.expecting = False

    def note_event(self, event: Chunk) -> None:
        """Record one event of a stream. A text counts as one token until an event contains the usage."""
        facts = self.facts
        if isinstance(event.type, str) and event.type.startswith("response."):
            self.expecting = True
            facts.terminal = facts.terminal or event.type in _LAST_EVENTS
            facts.tokens += isinstance(event.delta, str) and bool(event.delta)
        if isinstance(event.choices, list) and event.choices:
            self.expecting = True
            for choice in event.choices:
                self._note_choice(choice)
        self._note_rest(event)

    def note_reply(self, reply: Chunk) -> None:
        """Record a unary reply."""
        for choice in reply.choices if isinstance(reply.choices, list) else ():
            self._note_finish(choice)
        self._note_rest(reply)
        self.facts.terminal = True

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
        if isinstance(chunk.response, dict):
            self._note_usage(chunk.response.get("usage"))
        if chunk.error:
            code = chunk.error.get("code") if isinstance(chunk.error, dict) else None
            self.facts.error_status = code if type(code) is int and 400 <= code < 600 else 500
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
        reason = choice.get("finish_reason") if isinstance(choice, dict) else None
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
    return any(value for name, value in delta.items() if name != "role")


def _number(usage: dict[str, Any], names: tuple[str, ...], fallback: int | None) -> int | None:
    for name in names:
        value = usage.get(name)
        if type(value) is int and value >= 0:
            return value
    return fallback
