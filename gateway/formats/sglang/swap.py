"""Giving the client its own ids back: private ids in a reply's bytes become the public ones.

Owns: the search and the replacement, in whole documents and across the pieces of a long one. Must never
enter: JSON beyond the spelling of a string, knowledge of where ids stand.

A private id is random, so wherever its quoted spelling stands, it is the id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

import msgspec

from gateway.formats.base import Ids
from gateway.formats.sglang.request import SglangRequest


class Swap:
    """Replaces each key of ``spellings`` by its value. Feed it whole documents or pieces, not both."""

    def __init__(self, spellings: Mapping[bytes, bytes]) -> None:
        self._spellings = spellings
        self._longest = max(map(len, spellings))
        self._carry = b""

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        # Made for few: a pattern costs more to compile than all else this object ever does.
        return re.compile(b"|".join(map(re.escape, self._spellings)))

    def whole(self, document: bytes) -> bytes:
        if len(self._spellings) == 1:
            ((private, public),) = self._spellings.items()
            return document.replace(private, public)
        return self._pattern.sub(self._public, document)

    def piece(self, data: bytes) -> bytes:
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

    def rest(self) -> bytes:
        """What was kept, once no piece follows."""
        kept, self._carry = self._carry, b""
        return kept

    def _public(self, match: re.Match[bytes]) -> bytes:
        return self._spellings[match.group()]


def swap_for(request: SglangRequest, ids: Ids) -> Swap | None:
    """None where the reply holds no private id, so that its bytes need no look."""
    if not ids.private or request.fan > 1:
        return None
    if request.batch is None or isinstance(request.rid, list):
        pairs = zip(ids.dispatch, ids.public, strict=True)
        return Swap({_quoted(private): _quoted(public) for private, public in pairs})
    # The engine numbers the items of a batch: "<id>_0", "<id>_1" ...
    return Swap({_quoted(ids.dispatch[0])[:-1] + b"_": _quoted(ids.public[0])[:-1] + b"_"})


def _quoted(name: str) -> bytes:
    return msgspec.json.encode(name)
