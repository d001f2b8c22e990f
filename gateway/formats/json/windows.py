"""A big JSON text cut into windows, each held to the grammar by itself.

Owns: where a text may be cut, and what is wrong with it. Must never enter: members, a dialect, I/O.

msgspec reads fast but all at once, and nothing else runs in the process meanwhile: 64 MiB are 100 ms. So each
window is given to msgspec by itself, behind a few bytes that open what is open there: a list, an object, a
string. That it then ends too early is as it should be; whatever else msgspec complains of is what it says of
the whole, and is raised with the place in the whole. Where a window ends in the nesting is told from its
brackets alone, once its strings are taken out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

#: Where a text begins and ends.
Span = tuple[int, int]

#: Bytes of a window; to look at them takes a millisecond or two.
WINDOW = 128 * 1024
SPACE = b" \t\r\n"
OPENING, CLOSING = b"[{", b"]}"

TRUNCATED = "Input data was truncated"
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
#: On reversed text: the last quote that has no backslash of its own.
_QUOTE_REVERSED = re.compile(rb'"(?=(?:\\\\)*(?!\\))')
#: What of a string may be cut off: no half of an escape, and of no pair of surrogates.
_INSIDE = re.compile(
    rb'(?:[^"\\]++|\\u[dD][89abAB]\w\w\\u\w{4}|\\u(?![dD][89abAB])\w{4}|\\[^u])*+', re.DOTALL
)
_QUOTE, _LIST = b'"['
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
#: Pairs of brackets are taken out so often at once, from the inside; the rest one by one.
_ROUNDS = 4
#: A pair of surrogates, in bytes.
_LONGEST_ESCAPE = 12
#: Over the length of whatever is taken in one go, in bytes.
_LOOKAHEAD = 32
#: Digits and blanks in a row say no more than the first of them.
_LONG_RUNS = re.compile(rb"(?<=[0-9])[0-9]+|(?<=[ \t\r\n])[ \t\r\n]+")
#: What says nothing yet of the number, or the list, that it begins.
_OPENED = b"-0[ \t\r\n"
_HALF_NUMBER = b"-+.eE"
_PLACE = re.compile(r"\(byte (\d+)\)")


class _Nothing(msgspec.Struct):
    """An object of which nothing is wanted."""


#: Reads an object of which nothing is wanted.
skip = msgspec.json.Decoder(_Nothing).decode


class Window(NamedTuple):
    """A stretch of text.

    ``bare``: the part outside of strings, with ``s`` for each string. ``brackets``: those of it that have no
    partner in it, closing ones before opening ones. ``began``, ``inside``: it begins, ends inside a string.
    """

    start: int
    end: int
    bare: bytes = b""
    brackets: bytes = b""
    began: bool = False
    inside: bool = False


def windows(text: bytes, start: int, end: int) -> Iterator[Window]:
    """``text`` from ``start``, outside of a string, to ``end``. No token but a string or a number is cut.

    Where the text is no JSON, what a window says is wrong, but the window holds the first fault.
    """
    inside = False
    while start < end:
        stop = min(start + WINDOW, end)
        window = _inside(text, start, stop) if inside else _outside(text, start, stop, end)
        yield window
        start, inside = window.end, window.inside


def _inside(text: bytes, start: int, stop: int) -> Window:
    found = _INSIDE.match(text, start, stop)
    cut = start if found is None else found.end()
    if cut < stop and text[cut] == _QUOTE:
        return Window(start, cut + 1, began=True)
    # At the end of the window half an escape is left for the next one; elsewhere it is none.
    whole = cut == start or stop - cut >= _LONGEST_ESCAPE
    return Window(start, stop if whole else cut, began=True, inside=True)


def _outside(text: bytes, start: int, stop: int, end: int) -> Window:
    if stop < end:
        stop = text.rfind(b",", start, stop) + 1 or stop
    piece = text[start:stop]
    if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and len(piece) > 1:
        piece, stop = piece[:-1], stop - 1  # of an escape, half
    # The quote behind it ends the string that is open, if one is; else it is left over.
    bare = _STRING.sub(b"s", piece + b'"')
    inside = not bare.endswith(b'"')
    bare = bare[:-1]
    if b"\\" in bare:
        return Window(start, stop)  # no JSON
    if inside:
        opened = _QUOTE_REVERSED.search(piece[::-1])
        return Window(start, stop - (opened.start() if opened else 0), bare, _unpaired(bare), inside=True)
    if stop < end and not piece.endswith(b","):
        stop = start + (len(piece.rstrip(_HALF_NUMBER)) or len(piece))
    return Window(start, stop, bare, _unpaired(bare))


def _unpaired(bare: bytes) -> bytes:
    brackets = bare.translate(None, _NOT_BRACKETS)
    for _ in range(_ROUNDS):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    kept = bytearray()
    for bracket in brackets:
        if kept and bracket in CLOSING and kept[-1] in OPENING:
            kept.pop()
        else:
            kept.append(bracket)
    return bytes(kept)


class GrammarChecker:
    """Holds the windows of an object's text to JSON's grammar, one after the other."""

    def __init__(self, text: bytes, end: int) -> None:
        self._text = text
        self._end = end
        #: Brackets that are open, and those that came since the last place whose state is known.
        self._open = bytearray()
        self._since = b""
        #: The last such place is behind a colon, not behind a comma.
        self._valued = False
        #: What came since, cut down to what matters.
        self._carry = b""

    def check(self, window: Window) -> None:
        """Raises msgspec.DecodeError, with the place in the whole text, and RecursionError."""
        prefix = self._prefix() + self._carry
        piece = self._text[window.start : window.end]
        # A little more, as it takes what ends too early for that and does not ask what else it is.
        more = self._text[window.end : min(window.end + _LOOKAHEAD, self._end)]
        try:
            skip(prefix + piece + more)
        except msgspec.DecodeError as error:
            fault = _shifted(error, window.start - len(prefix))
            later = str(error) == TRUNCATED or place_of(fault) > window.end
            if not later or window.end + _LOOKAHEAD >= self._end:
                raise fault from None
        self._pass(window, piece)

    def _prefix(self) -> bytes:
        if not self._open:
            return b""
        outer = b"".join(b"[" if bracket == _LIST else b'{"":' for bracket in self._open[:-1])
        if self._open[-1] == _LIST:
            return outer + b"[0,"
        return outer + (b'{"":' if self._valued else b'{"":0,')

    def _pass(self, window: Window, piece: bytes) -> None:
        if window.began and window.inside:
            return
        self._since += window.brackets
        if window.inside:
            before = (self._carry + window.bare).rstrip(SPACE)
            self._known(before.endswith(b":") if before else self._valued, b'"')
        elif window.bare.endswith(b","):
            self._known(False, b"")
        elif window.began:
            self._carry = b'""'
        else:
            self._carry += _LONG_RUNS.sub(b"", _STRING.sub(b'""', piece))

    def _known(self, valued: bool, carry: bytes) -> None:
        for bracket in self._since:
            if bracket in OPENING:
                self._open.append(bracket)
            else:
                self._open.pop()
        self._since = b""
        self._valued, self._carry = valued, carry


def pieces(text: bytes, span: Span) -> Iterator[bytes]:
    """The text at ``span``, cut behind commas; only what has none for long is cut elsewhere."""
    start, end = span
    while start < end:
        stop = min(start + WINDOW, end)
        if stop < end:
            stop = text.rfind(b",", start, stop) + 1 or stop
        piece = text[start:stop]
        if stop < end and not piece.endswith(b","):
            piece = piece.rstrip(_OPENED) or piece
        yield piece
        start += len(piece)


def _shifted(error: msgspec.DecodeError, by: int) -> msgspec.DecodeError:
    """``error`` of a piece, with its place in the whole, which the piece lies ``by`` bytes into."""
    return type(error)(_PLACE.sub(lambda place: f"(byte {int(place[1]) + by})", str(error)))


def place_of(error: Exception) -> int:
    """Where msgspec found a fault; 0 where it does not say."""
    named = _PLACE.search(str(error))
    return int(named[1]) if named else 0
