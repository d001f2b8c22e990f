"""A JSON object merged from parts by the join rules, in the engine's own bytes.

Owns: what each rule does to a key's values. Must never enter: events, facts, which key has which rule
(rules.py).

Values are kept as they were spelled, lists and texts without their brackets or quotes, so that adding a part
costs a copy of it and nothing is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from gateway.formats.vllm.join.rules import DEFAULT, LOGPROBS, MergeRule
from gateway.formats.vllm.reply import any_object

NULL = b"null"

Part = bytes | bytearray
Parts = list[Part]
#: An object's members, each value as JSON text.
Members = Mapping[str, msgspec.Raw | bytes]

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SPACE = b" \t\r\n"


def members_of(data: bytes) -> Members:
    """Return the members of the object in ``data``. Raises UpstreamMalformed if it is none."""
    try:
        return _MEMBERS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return encode_values(any_object(data))


def encode_values(found: dict[str, Any]) -> Members:
    """Encode the values of an object that only Python's parser could read."""
    return {key: json.dumps(value, separators=(",", ":")).encode() for key, value in found.items()}


class Slot(Protocol):
    """The merged value of one key."""

    def add(self, value: bytes) -> None:
        """Add a value, valid JSON and not null."""
        ...

    def parts(self) -> Parts:
        """Return the merged value, in pieces."""
        ...


class Last:
    """A key that keeps its latest value."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = NULL

    def add(self, value: bytes) -> None:
        self._value = value

    def parts(self) -> Parts:
        return [self._value]


class First(Last):
    """A key that keeps its first value."""

    __slots__ = ()

    def add(self, value: bytes) -> None:
        if self._value is NULL:
            self._value = value


class Sequence:
    """A key whose lists, or texts, are concatenated. A value of another type replaces them."""

    __slots__ = ("_close", "_comma", "_items", "_other", "_open")

    def __init__(self, brackets: bytes, comma: bytes) -> None:
        self._open, self._close = brackets[:1], brackets[1:]
        self._comma = comma
        self._items: bytearray | None = None
        self._other: bytes | None = None

    def add(self, value: bytes) -> None:
        if value == NULL:
            return
        if not value.startswith(self._open):
            self._other = value
            return
        self._other = None
        if self._items is None:
            self._items = bytearray()
        inner = value[1:-1]
        if self._comma and not (inner := inner.strip(_SPACE)):
            return
        if self._items:
            self._items += self._comma
        self._items += inner

    def parts(self) -> Parts:
        if self._other is not None:
            return [self._other]
        return [NULL] if self._items is None else [self._open, self._items, self._close]


class MergedObject:
    """One merged object; its keys stand in the order in which they came."""

    __slots__ = ("_rules", "_slots")

    def __init__(self, rules: Mapping[str, MergeRule]) -> None:
        self._rules = rules
        self._slots: dict[str, Slot] = {}

    def add(self, members: Members) -> None:
        slots = self._slots
        for key, raw in members.items():
            slot = slots.get(key)
            if slot is None:
                slot = slots[key] = _SLOTS[self._rules.get(key, DEFAULT)]()
            value = bytes(raw)
            if value != NULL:
                slot.add(value)

    def sequence(self, key: str, *below: str) -> Sequence | None:
        """Return the list or text under ``key``, or deeper, to be added to directly; None if there is
        none.
        """
        slot = self._slots.get(key)
        if isinstance(slot, Nested) and slot.merged is not None:
            return slot.merged.sequence(*below)
        return slot if isinstance(slot, Sequence) else None

    def take(self, key: str) -> Parts:
        """Remove ``key`` and return its value, null if there is none."""
        slot = self._slots.pop(key, None)
        return [NULL] if slot is None else slot.parts()

    def members(self) -> Parts:
        """Return the remaining members, without braces."""
        parts: Parts = []
        for key, slot in self._slots.items():
            parts += (b"," if parts else b"", msgspec.json.encode(key), b":", *slot.parts())
        return parts

    def parts(self) -> Parts:
        return [b"{", *self.members(), b"}"]


class Nested:
    """A key whose value is an object with rules of its own. A value of another type replaces it."""

    __slots__ = ("_other", "merged")

    def __init__(self) -> None:
        self.merged: MergedObject | None = None
        self._other = NULL

    def add(self, value: bytes) -> None:
        if not value.startswith(b"{"):
            self._other = value
            return
        if self.merged is None:
            self.merged = MergedObject(LOGPROBS)
        self.merged.add(members_of(value))

    def parts(self) -> Parts:
        return [self._other] if self.merged is None else self.merged.parts()


_SLOTS: Mapping[MergeRule, Callable[[], Slot]] = {
    MergeRule.APPEND: lambda: Sequence(b"[]", b","),
    MergeRule.TEXT: lambda: Sequence(b'""', b""),
    MergeRule.FIRST: First,
    MergeRule.NESTED: Nested,
    # Of a value that is expected once, the latest is kept.
    MergeRule.LAST: Last,
    MergeRule.TERMINAL: Last,
    MergeRule.UNSTREAMED: Last,
    MergeRule.GIVEN: Last,
}
