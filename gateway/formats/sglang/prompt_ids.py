"""Counting a prompt's token ids in their JSON text.

Owns: counting ``input_ids`` by brackets and commas, all of them and those of each list. Must never enter:
judging them, decoding.
"""

from __future__ import annotations

import re
from typing import Final

_NEGATIVE = re.compile(rb"-0*[1-9]")
_EMPTY_LIST = re.compile(rb"\[\s*\]")
_LIST_OF_LISTS = re.compile(rb"\[\s*\[")
_NO_ID = b"[] \t\r\n"
#: `int in bytes` is about ten times faster than `bytes in bytes`.
_MINUS: Final = ord("-")
#: The most lists of which each count is kept.
MOST_LENGTHS = 16384


class PromptIds:
    """The count of a list of token ids, fed with its text in one piece or in pieces cut after commas.

    For text that is no list of ids the numbers mean nothing; the engine refuses it. ``nested``: it is a list
    of lists, ``empty`` of which are empty; ``lengths`` are those of its first lists, ``longest`` is that of
    the longest, where an empty one counts as one id.
    """

    __slots__ = (
        "_commas",
        "_has_ids",
        "_lists",
        "_open",
        "_longest",
        "empty",
        "lengths",
        "negative",
        "nested",
    )

    def __init__(self, flat: int = 0) -> None:
        """``flat``: the number of ids of a flat list that was counted already."""
        self.negative = False
        self.nested = False
        self.empty = 0
        self.lengths: list[int] = []
        self._longest = 0
        #: The number of ids so far in the list that the text is in. A comma stands before each but the first.
        self._open = 1
        self._commas = max(0, flat - 1)
        self._lists = 1 if flat else 0
        self._has_ids = flat > 0

    def add(self, text: bytes) -> None:
        """Add the next piece of text."""
        if _MINUS in text and _NEGATIVE.search(text):
            self.negative = True
        if not self._lists:
            self.nested = _LIST_OF_LISTS.match(text) is not None
        if self.nested:
            self.empty += len(_EMPTY_LIST.findall(text))
            self._add_lengths(text)
        self._commas += text.count(b",")
        self._lists += text.count(b"[")
        self._has_ids = self._has_ids or bool(text.strip(_NO_ID))

    def _add_lengths(self, text: bytes) -> None:
        lengths = [part.count(b",") for part in text.split(b"]")]
        lengths[0] += self._open
        self._open = lengths.pop()
        self._longest = max((self._longest, *lengths))
        if len(self.lengths) < MOST_LENGTHS:
            self.lengths += lengths

    @property
    def longest(self) -> int:
        """The number of ids in the longest list."""
        return self._longest if self.nested else self.tokens

    @property
    def rows(self) -> int:
        """The number of lists in the list."""
        return self._lists - 1

    @property
    def tokens(self) -> int:
        """The number of ids in all lists."""
        return self._commas + 1 - self.empty if self._has_ids or self.nested else 0
