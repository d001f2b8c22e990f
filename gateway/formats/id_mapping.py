"""Giving the client its own ids back: private ids in a reply's bytes become the public ones.

Owns: the search and the replacement, in whole documents and across the pieces of a long one. Must never
enter: JSON, knowledge of where ids stand.

A private id is random, so wherever its spelling stands, it is the id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property


class IdMapping:
    """Replaces each key of ``spellings`` by its value. Feed it whole documents or pieces, not both."""

    def __init__(self, spellings: Mapping[bytes, bytes]) -> None:
        self._spellings = spellings
        self._longest = max(map(len, spellings))
        self._carry = b""

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        # Made for few: a pattern costs more to compile than all else this object ever does.
        return re.compile(b"|".join(map(re.escape, self._spellings)))

    def map(self, document: bytes) -> bytes:
        if len(self._spellings) == 1:
            ((private, public),) = self._spellings.items()
            return document.replace(private, public)
        return self._pattern.sub(self._public, document)

    def feed(self, data: bytes) -> bytes:
        """What is certain after ``data``; the last bytes may be the beginning of an id and are kept."""
        data = self._carry + data
        parts: list[bytes] = []
        done = 0
        for match in self._pattern.finditer(data):
            parts += (data[done : match.start()], self._public(match))
            done = match.end()
        cut = max(done, len(data) - self._longest + 1)
        parts.append(data[done:cut])
        self._carry = data[cut:]
        return b"".join(parts)

    def flush(self) -> bytes:
        """What was kept, once no piece follows."""
        kept, self._carry = self._carry, b""
        return kept

    def _public(self, match: re.Match[bytes]) -> bytes:
        return self._spellings[match.group()]
