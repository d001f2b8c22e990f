"""Cutting a long flat list of token ids out of a body, so that no parser has to read it.

Owns: finding such a list, and counting it. Must never enter: a dialect, values of any other kind, I/O,
third-party packages.

Most of a body of many ids is one list of numbers, and finding its end costs a thirtieth of parsing it. What
is cut out consists of digits, commas and spaces alone, so the rest means without it what it meant with it.
Whether the numbers are well-formed is not checked: the engine does that.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gateway.formats.json.windows import Span

#: Replaces the list: a list that no client sends, as no id is written like its only entry.
STAND_IN = b"[0e0]"
#: Bytes. A shorter body is parsed as fast as it is cut.
_SHORT = 1024

_OPENING = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*\[")
_BEFORE = b"{, \t\r\n"
_IN_IDS = b"0123456789 \t\r\n"


class LongIds(NamedTuple):
    """A body without its list: ``rest`` has ``STAND_IN`` for the list, which was at ``span`` and has
    ``ids`` ids.
    """

    rest: bytes
    span: Span
    ids: int


def cut_ids(body: bytes, name: bytes) -> LongIds | None:
    """Cut out the first list of ids after ``name``, a JSON string in its quotes; None if there is none.

    Members of inner objects and later members of the same name are not distinguished: ``STAND_IN`` is the
    value that counts if, and only if, the list was.
    """
    found = body.find(name) if len(body) >= _SHORT else -1
    # After a backslash the first quote would not begin a name, and a name at the very start is no JSON.
    if found < 1 or body[found - 1] not in _BEFORE:
        return None
    opening = _OPENING.match(body, found + len(name))
    if opening is None:
        return None
    start = opening.end()
    end = body.find(b"]", start)
    commas = body[start:end].translate(None, _IN_IDS) if end > 0 else b""
    if not commas or commas != b"," * len(commas):
        return None
    start, end = start - 1, end + 1
    return LongIds(b"%b%b%b" % (body[:start], STAND_IN, body[end:]), (start, end), len(commas) + 1)
