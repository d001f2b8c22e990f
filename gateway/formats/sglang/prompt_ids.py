"""What is known of a prompt's ids from their text alone.

Owns: counting ``input_ids`` by brackets and commas. Must never enter: judging them, decoding.
"""

from __future__ import annotations

import re
from typing import Final

_NEGATIVE = re.compile(rb"-0*[1-9]")
_EMPTY_LIST = re.compile(rb"\[\s*\]")
_LIST_OF_LISTS = re.compile(rb"\[\s*\[")
_NO_ID = b"[] \t\r\n"
#: A number, as to look for it in bytes takes a tenth of what looking for a bytes of one takes.
_MINUS: Final = ord("-")


class PromptIds:
    """Fed with the text of the list, whole or in pieces cut behind commas.

    On what is no list of ids the numbers mean nothing; the engine refuses it. ``nested``: a list of lists,
    ``empty`` of which have nothing in them.
    """

    __slots__ = ("_commas", "_lists", "_some", "empty", "negative", "nested")

    def __init__(self, flat: int = 0) -> None:
        """``flat``: the ids of a flat list that was counted already."""
        self.negative = False
        self.nested = False
        self.empty = 0
        self._commas = max(0, flat - 1)
        self._lists = 1 if flat else 0
        self._some = flat > 0

    def add(self, text: bytes) -> None:
        """The next piece."""
        if _MINUS in text and _NEGATIVE.search(text):
            self.negative = True
        if not self._lists:
            self.nested = _LIST_OF_LISTS.match(text) is not None
        if self.nested:
            self.empty += len(_EMPTY_LIST.findall(text))
        self._commas += text.count(b",")
        self._lists += text.count(b"[")
        self._some = self._some or bool(text.strip(_NO_ID))

    @property
    def rows(self) -> int:
        """Lists in the list."""
        return self._lists - 1

    @property
    def tokens(self) -> int:
        """Ids in all of it."""
        return self._commas + 1 - self.empty if self._some or self.nested else 0
