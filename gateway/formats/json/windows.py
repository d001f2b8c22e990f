"""A large JSON text cut into windows, each of which is checked against the grammar by itself.

Owns: where a text may be cut, and its errors. Must never enter: members, a dialect, I/O.

msgspec reads fast but all at once, and nothing else runs in the process meanwhile: 64 MiB take 100 ms. So
each window is given to msgspec by itself, after a few bytes that open the brackets and strings that are open
there: a list, an object, a string. The resulting error that the input is truncated is expected; any other
error is the one msgspec has for the entire text, and is raised with its place in the entire text. Which
brackets are open at the end of a window is known from its brackets alone, once its strings are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

#: The start and the end of a part of a text.
Span = tuple[int, int]

#: Bytes of a window; reading one takes a millisecond or two.
WINDOW = 128 * 1024
SPACE = b" \t\r\n"
OPENING, CLOSING = b"[{", b"]}"

TRUNCATED = "Input data was truncated"
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
#: On reversed text: the last quote that is not escaped.
_QUOTE_REVERSED = re.compile(rb'"(?=(?:\\\\)*(?!\\))')
#: A part of a string that may be cut off: it ends neither within an escape nor within a pair of surrogates.
_INSIDE = re.compile(
    rb'(?:[^"\\]++|\\u[dD][89abAB]\w\w\\u\w{4}|\\u(?![dD][89abAB])\w{4}|\\[^u])*+', re.DOTALL
)
_QUOTE, _LIST = b'"['
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
#: Pairs of brackets are removed all at once this many times, from the inside; the rest one by one.
_ROUNDS = 4
#: Bytes of an escaped pair of surrogates.
_LONGEST_ESCAPE = 12
#: Bytes; more than any token that is read at once has.
_LOOKAHEAD = 32
#: Of a run of digits or spaces only the first matters.
_LONG_RUNS = re.compile(rb"(?<=[0-9])[0-9]+|(?<=[ \t\r\n])[ \t\r\n]+")
#: A cut after these would leave a number, or a list, without its first digit.
_OPENED = b"-0[ \t\r\n"
_HALF_NUMBER = b"-+.eE"
_PLACE = re.compile(r"\(byte (\d+)\)")


class _AnyObject(msgspec.Struct):
    """An object without any wanted member."""


#: Reads an object and returns nothing of it.
skip = msgspec.json.Decoder(_AnyObject).decode


class Window(NamedTuple):
    """A part of a text.

    ``bare``: what is outside of strings, with ``s`` for each string. ``brackets``: those of it that have no
    partner in it, closing ones before opening ones. ``began``, ``inside``: the window begins, ends inside a
    string.
    """

    start: int
    end: int
    bare: bytes = b""
    brackets: bytes = b""
    began: bool = False
    inside: bool = False


def windows(text: bytes, start: int, end: int) -> Iterator[Window]:
    """Yield the windows of ``text`` from ``start``, outside of a string, to ``end``. Only strings and numbers
    are cut.

    If the text is no JSON, the fields of a window are wrong, but the window contains the first error.
    """
    inside = False
    while start < end:
        stop = min(start + WINDOW, end)
        window = _window_inside(text, start, stop) if inside else _window_outside(text, start, stop, end)
        yield window
        start, inside = window.end, window.inside


def _window_inside(text: bytes, start: int, stop: int) -> Window:
    found = _INSIDE.match(text, start, stop)
    cut = start if found is None else found.end()
    if cut < stop and text[cut] == _QUOTE:
        return Window(start, cut + 1, began=True)
    # At the end of the window half an escape is left for the next window; elsewhere it is an error.
    complete = cut == start or stop - cut >= _LONGEST_ESCAPE
    return Window(start, stop if complete else cut, began=True, inside=True)


def _window_outside(text: bytes, start: int, stop: int, end: int) -> Window:
    if stop < end:
        stop = text.rfind(b",", start, stop) + 1 or stop
    piece = text[start:stop]
    if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and len(piece) > 1:
        piece, stop = piece[:-1], stop - 1  # of an escape, half
    # The added quote ends the string that is open, if there is one; else it remains.
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
    """A check of an object's windows, one after the other, against JSON's grammar."""

    def __init__(self, text: bytes, end: int) -> None:
        self._text = text
        self._end = end
        #: Brackets that are open, and those since the last place whose state is known.
        self._open = bytearray()
        self._since = b""
        #: True if the last such place is after a colon, False if it is after a comma.
        self._valued = False
        #: The text since then, reduced to what matters.
        self._carry = b""

    def check(self, window: Window) -> None:
        """Raise msgspec.DecodeError, with the place in the entire text, or RecursionError if the window is
        not valid.
        """
        prefix = self._prefix() + self._carry
        piece = self._text[window.start : window.end]
        # A little more text, as msgspec reports input that ends too early before it checks the rest.
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
            self._set_state(before.endswith(b":") if before else self._valued, b'"')
        elif window.bare.endswith(b","):
            self._set_state(False, b"")
        elif window.began:
            self._carry = b'""'
        else:
            self._carry += _LONG_RUNS.sub(b"", _STRING.sub(b'""', piece))

    def _set_state(self, valued: bool, carry: bytes) -> None:
        for bracket in self._since:
            if bracket in OPENING:
                self._open.append(bracket)
            else:
                self._open.pop()
        self._since = b""
        self._valued, self._carry = valued, carry


def pieces(text: bytes, span: Span) -> Iterator[bytes]:
    """Yield the text at ``span``, cut after commas; elsewhere only where none follows for long."""
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
    """Return ``error`` of a piece with its place in the entire text, in which the piece starts at ``by``."""
    return type(error)(_PLACE.sub(lambda position: f"(byte {int(position[1]) + by})", str(error)))


def place_of(error: Exception) -> int:
    """Return the place at which msgspec found an error; 0 if it does not report one."""
    named = _PLACE.search(str(error))
    return int(named[1]) if named else 0
