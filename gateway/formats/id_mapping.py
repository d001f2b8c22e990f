"""Mapping private ids in a reply's bytes back to the client's public ids.

Owns: the search and the replacement, in complete documents and across the pieces of a long one. Must never
enter: JSON, knowledge of where ids stand.

A private id is random, so every occurrence of its spelling is the id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property


class IdMapping:
    """A rewriter that replaces each key of ``spellings`` by its value.

    Use ``map`` for complete documents, or ``feed`` and ``flush`` for pieces, not both.
    """

    def __init__(self, spellings: Mapping[bytes, bytes]) -> None:
        self._spellings = spellings
        self._longest = max(map(len, spellings))
        self._carry = b""

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        # Compiled when needed, which is seldom: it costs more than all else this object does.
        return re.compile(b"|".join(map(re.escape, self._spellings)))

    def map(self, document: bytes) -> bytes:
        if len(self._spellings) == 1:
            ((private, public),) = self._spellings.items()
            return document.replace(private, public)
        return self._pattern.sub(self._public, document)

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that are certain after ``data``; the last bytes may begin an id and are
        kept.
        """
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
        """Return the bytes that were kept, once no piece follows."""
        kept, self._carry = self._carry, b""
        return kept

    def _public(self, match: re.Match[bytes]) -> bytes:
        return self._spellings[match.group()]
