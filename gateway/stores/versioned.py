"""What was said of a mark, and which of two sayings is the later one.

Owns: the order that all processes and gateways agree on, and how it is spelt. Must never enter: what a mark
means, who is told, a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_DIGITS = 20


class Versioned(NamedTuple):
    """Whether a mark is there, as somebody said. The larger of two counts, in whatever order they arrive, so
    that all who have heard the same agree.

    ``at`` is larger than that of all that ``who`` had heard of: microseconds of a clock, or one more. Two
    that are equal in it were said at once, and their order is any, but the same everywhere. ``who`` is the
    process of a gateway that says it. Both are 0 and "" where a store has a mark from somebody who knows no
    order: a person, or a gateway before there was one.
    """

    timestamp: int
    writer: str
    present: bool

    @property
    def dated(self) -> bool:
        return self.timestamp > 0

    @property
    def text(self) -> str:
        """``at`` and ``who``; later ones are larger texts, "" is not dated."""
        return f"{self.timestamp:0{_DIGITS}d} {self.writer}" if self.dated else ""

    @classmethod
    def from_text(cls, text: str, present: bool) -> Versioned:
        """What ``text`` says; whatever else it is counts as not dated."""
        count, _, who = text.partition(" ")
        if len(count) == _DIGITS and count.isascii() and count.isdigit():
            return cls(int(count), who, present)
        return undated(present)


#: By URL, and by word of a mark.
Updates = Mapping[str, Mapping[str, Versioned]]


def undated(present: bool) -> Versioned:
    """Said by somebody who knows no order."""
    return Versioned(0, "", present)


def updates_from_json(members: Mapping[str, Mapping[str, Any]]) -> Updates:
    """Edits that this program wrote as JSON."""
    return {url: {word: Versioned(*row) for word, row in words.items()} for url, words in members.items()}
