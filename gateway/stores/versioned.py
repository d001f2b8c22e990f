"""An entry of a last-writer-wins map, and which of two entries of one key counts.

Owns: the order of entries, on which all processes and gateways agree, and its text. Must never enter: what an
entry means, a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_DIGITS = 20


class Versioned(NamedTuple):
    """A last-writer-wins register: of two entries of one key, the larger one is the later write and counts.

    ``timestamp`` is larger than that of every entry that ``writer`` had seen: microseconds of a clock, or the
    largest one seen plus 1. Entries with equal timestamps were written concurrently; their order is
    arbitrary, but the same everywhere. ``writer`` is a process of a gateway. ``present`` says whether the
    entry adds or removes its key. An undated entry (0, "") was written by somebody who knows no order: a
    person who edits a file, or a gateway of an old version."""

    timestamp: int
    writer: str
    present: bool

    @property
    def dated(self) -> bool:
        return self.timestamp > 0

    @property
    def text(self) -> str:
        """``timestamp`` and ``writer``; a later one is a larger text, and "" is undated."""
        return f"{self.timestamp:0{_DIGITS}d} {self.writer}" if self.dated else ""

    @classmethod
    def from_text(cls, text: str, present: bool) -> Versioned:
        """Return the entry with this ``text``; any other text is undated."""
        count, _, writer = text.partition(" ")
        if len(count) == _DIGITS and count.isascii() and count.isdigit():
            return cls(int(count), writer, present)
        return undated(present)


#: Entries by worker URL and by reason.
Updates = Mapping[str, Mapping[str, Versioned]]


def undated(present: bool) -> Versioned:
    """Return an entry without an order."""
    return Versioned(0, "", present)


def updates_from_json(members: Mapping[str, Mapping[str, Any]]) -> Updates:
    """Return updates from the JSON object that ``json.dumps`` made of them."""
    return {
        url: {reason: Versioned(*row) for reason, row in reasons.items()} for url, reasons in members.items()
    }
