"""Facts from the bytes of a unary reply that is too long to be held.

Owns: where counts and finish reasons stand in a reply's text. Must never enter: decoding.

A quote inside a JSON string has a backslash before it, so what is searched for stands only where it means
what it says. That the whole is JSON is not known; its first and last bracket must match.
"""

from __future__ import annotations

import re

from gateway.formats.contract import ReplyFacts

_FACT = re.compile(
    rb'"(completion_tokens|prompt_tokens|cached_tokens)":(\d{1,15})[,}]'
    rb'|"finish_reason":\{"type":"([a-z_]{1,32})"'
)
# Longer than any text that matches.
_OVERLAP = 80
_BRACKETS = frozenset({b"{}", b"[]"})


class Scan:
    """Fed with the reply's pieces; adds what it finds to ``facts``."""

    __slots__ = ("_facts", "_fan", "_first", "_last", "_prompts", "_tail")

    def __init__(self, facts: ReplyFacts, fan: int) -> None:
        self._facts = facts
        self._fan = fan
        self._prompts = {b"prompt_tokens": 0, b"cached_tokens": 0}
        self._tail = b""
        self._first = b""
        self._last = b""

    def piece(self, data: bytes) -> None:
        if text := data.strip():
            self._first = self._first or text[:1]
            self._last = text[-1:]
        data = self._tail + data
        done = 0
        for match in _FACT.finditer(data):
            done = match.end()
            self._note(*match.groups())
        self._tail = data[max(done, len(data) - _OVERLAP) :]

    def whole(self) -> bool:
        """Whether the reply ended with the bracket that closes its first one."""
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
        if position % self._fan:
            # The samples of one prompt repeat its counts.
            return
        if name == b"prompt_tokens":
            self._facts.prompt_tokens = (self._facts.prompt_tokens or 0) + count
        else:
            self._facts.cached_tokens = (self._facts.cached_tokens or 0) + count
