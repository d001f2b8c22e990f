"""Blanking one member of a JSON object that arrives in pieces, of any size.

Owns: finding a top-level member, and spaces in place of it and of one comma, so that the length stays.
Must never enter: a dialect, I/O, third-party packages. The input should be JSON; nothing is raised for
anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

#: Bytes that are looked at from a comma on; a member with more space before its value is not found.
_LOOK = 256
#: No reader of JSON accepts more brackets in one another, so that nothing behind them is looked at.
_DEEPEST = 1000
#: Bytes of a value that are kept to be read.
_VALUE_LIMIT = 64 * 1024

_INSIDE_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_BRACKETED = rb"(?!)"
for _ in range(4):  # as deep as log probabilities are; a match for each bracket would take too long
    _BRACKETED = rb'[\[{](?:[^"\[\]{}]++|%b|%b)*+[\]}]' % (_STRING, _BRACKETED)
# Entire strings, entire lists and objects, and what is between them. Both stop before an incomplete one.
_TOP = re.compile(rb'(?:[^"\[\]{},]++|%b|%b)*+' % (_STRING, _BRACKETED), re.DOTALL)
_NESTED = re.compile(rb'(?:[^"\[\]{}]++|%b|%b)*+' % (_STRING, _BRACKETED), re.DOTALL)
_QUOTE: Final = ord('"')
_COMMA: Final = ord(",")
_OPENING: Final = b"{["


class MemberBlanker:
    """Blanks each top-level member called ``key`` whose value is an object or null.

    ``on_value`` is called with the value of each.
    """

    def __init__(self, key: str, on_value: Callable[[bytes], None]) -> None:
        self._member = re.compile(rb',?\s{0,64}"%b"\s{0,64}:\s{0,64}(?=\{|null)' % re.escape(key.encode()))
        self._on_value = on_value
        self._held = b""
        self._depth = 0
        #: Nothing that follows is looked at.
        self._over = False
        self._in_string = False
        #: The next byte belongs to a backslash.
        self._escaped = False
        #: At the beginning of the object, or at a comma in it.
        self._at_member = False
        #: No member was let through yet, so that there is no comma before the next one.
        self._first = True
        self._blanking = False
        self._value = b""

    def feed(self, data: bytes, *, final: bool = False) -> bytes:
        """Return what could be decided of the bytes so far; with ``final`` all of them."""
        text, place = self._held + data, 0
        self._held = b""
        out: list[bytes] = []
        while place < len(text):
            if self._at_member:
                if len(text) - place < _LOOK and not final:
                    self._held = text[place:]
                    break
                place = self._begin_member(text, place, out)
            elif self._depth == 1 and text[place] == _COMMA and not self._in_string:
                place = self._end_member(place, out)
            else:
                stop = self._skip(text, place)
                self._pass(text[place:stop], out)
                place = stop
        return b"".join(out)

    def _begin_member(self, text: bytes, place: int, out: list[bytes]) -> int:
        self._at_member = False
        found = self._member.match(text, place)
        if found is not None:
            self._blanking, self._value = True, b""
            out.append(b" " * (found.end() - place))
            return found.end()
        self._first = False
        if text[place] != _COMMA:
            return place
        out.append(b",")
        return place + 1

    def _end_member(self, place: int, out: list[bytes]) -> int:
        self._at_member = True
        if not self._blanking:
            return place
        self._end_value()
        if not self._first:
            return place
        out.append(b" ")
        return place + 1

    def _end_value(self) -> None:
        self._blanking = False
        self._on_value(self._value.strip())

    def _pass(self, part: bytes, out: list[bytes]) -> None:
        if self._blanking:
            self._value += part[: _VALUE_LIMIT - len(self._value)]
            part = b" " * len(part)
        out.append(part)

    def _skip(self, text: bytes, place: int) -> int:
        """Return the end of what is alike from ``place`` on, at least one byte later."""
        if self._over:
            return len(text)
        if self._in_string:
            return self._skip_string(text, place)
        if self._depth:
            stop = _match_end(_TOP if self._depth == 1 else _NESTED, text, place)
        else:
            stop = len(text) - len(text[place:].lstrip())
        if stop == place:
            self._enter(text[place])
            return place + 1
        return stop

    def _skip_string(self, text: bytes, place: int) -> int:
        if self._escaped:
            self._escaped = False
            return place + 1
        stop = _match_end(_INSIDE_STRING, text, place)
        if stop == len(text):
            return stop
        # The pattern stops before the closing quote, or a backslash at the end of the piece.
        self._in_string = self._escaped = text[stop] != _QUOTE
        return stop + 1

    def _enter(self, byte: int) -> None:
        """Take a bracket, or the quote of a string whose end has not arrived."""
        if byte == _QUOTE and self._depth:
            self._in_string = True
        elif self._depth == 0:
            self._at_member = byte == _OPENING[0]
            self._depth, self._over = 1, not self._at_member
        elif byte in _OPENING:
            self._depth += 1
            self._over = self._depth > _DEEPEST
        else:
            self._depth -= 1
            self._over = self._depth == 0
            if self._over and self._blanking:
                self._end_value()


def _match_end(pattern: re.Pattern[bytes], text: bytes, place: int) -> int:
    found = pattern.match(text, place)
    assert found is not None, "the pattern matches an empty text"
    return found.end()
