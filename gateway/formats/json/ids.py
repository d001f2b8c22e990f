"""Taking a long flat list of ids out of a body, so that no parser has to go through it.

Owns: finding such a list, and counting it. Must never enter: a dialect, values of any other kind, I/O,
third-party packages.

Most of a body of many ids is one list of numbers, and to look where it ends costs a thirtieth of what
parsing costs. What is cut out consists of digits, commas and blanks alone, so whatever surrounds it means
without it what it meant with it. That the numbers are well-formed is not looked at: the engine's to refuse.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gateway.formats.json.windows import Span

#: Stands where the list was: a list that no client sends, as its only entry is written as no id is.
STAND_IN = b"[0e0]"
#: Bodies below this, in bytes, are parsed as fast as they are cut.
_SHORT = 1024

_OPENING = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*\[")
_BEFORE = b"{, \t\r\n"
_IN_IDS = b"0123456789 \t\r\n"


class LongIds(NamedTuple):
    """``rest`` is the body with ``STAND_IN`` for the list, which stands at ``span`` and has ``ids`` ids."""

    rest: bytes
    span: Span
    ids: int


def cut_ids(body: bytes, name: bytes) -> LongIds | None:
    """The first list of ids that follows ``name``, a JSON string in its quotes; None: there is none to cut.

    Members of inner objects and later ones of the same name are not told apart: ``STAND_IN`` is the value
    that counts if, and only if, the list was.
    """
    found = body.find(name) if len(body) >= _SHORT else -1
    # Behind a backslash the first quote would be none, and a bare name is found nowhere but in no JSON.
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
