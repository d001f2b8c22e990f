"""Reading a big JSON object in steps of bounded work.

Owns: holding it to the grammar piece by piece, and where its members, or the entries of a list, stand. Must
never enter: a dialect, what a member means, I/O.

msgspec reads fast but all at once, and nothing else runs in the process meanwhile: 64 MiB are 100 ms. So a
big body is cut into windows, and each is given to msgspec behind a few bytes that open what is open there:
a list, an object, a string. That it then ends too early is as it should be; whatever else msgspec complains
of is what it says of the whole, and is raised with the place in the whole. Where a window ends in the nesting
is told from its brackets alone, once its strings are taken out.

Every generator here yields after at most a few milliseconds of work and returns its result.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

T = TypeVar("T")
#: What works in steps: to be run to its end, with a pause wherever it yields.
Steps = Generator[None, None, T]
#: Where a text begins and ends.
Span = tuple[int, int]

#: A text over this, in bytes, is read in steps; a smaller one takes a few milliseconds at most.
BIG = 1024 * 1024

_WINDOW = 128 * 1024
#: Tokens looked at one by one between two yields.
_TOKENS = 4096
_TRUNCATED = "Input data was truncated"

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
#: On reversed text: the last quote that has no backslash of its own.
_QUOTE_REVERSED = re.compile(rb'"(?=(?:\\\\)*(?!\\))')
#: What of a string may be cut off: no half of an escape, and of no pair of surrogates.
_INSIDE = re.compile(
    rb'(?:[^"\\]++|\\u[dD][89abAB]\w\w\\u\w{4}|\\u(?![dD][89abAB])\w{4}|\\[^u])*+', re.DOTALL
)
_QUOTE, _COMMA, _COLON, _LIST = b'",:['
_OPENING, _CLOSING = b"[{", b"]}"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
#: Pairs of brackets are taken out so often at once, from the inside; the rest one by one.
_ROUNDS = 4
#: A pair of surrogates, in bytes.
_LONGEST_ESCAPE = 12
_SPACE = b" \t\r\n"
#: Over the length of whatever is taken in one go, in bytes.
_LOOKAHEAD = 32
#: Digits and blanks in a row say no more than the first of them.
_LONG_RUNS = re.compile(rb"(?<=[0-9])[0-9]+|(?<=[ \t\r\n])[ \t\r\n]+")
_EMPTY = re.compile(rb"[ \t\r\n]*+\}")
#: What says nothing yet of the number, or the list, that it begins.
_OPENED = b"-0[ \t\r\n"
_HALF_NUMBER = b"-+.eE"
_PLACE = re.compile(r"\(byte (\d+)\)")
# Strings up to where they, or the text, end; brackets, commas, colons.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[{}\[\],:]', re.DOTALL)
_REST = re.compile(rb'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)


class _Nothing(msgspec.Struct):
    """An object of which nothing is wanted."""


_skip = msgspec.json.Decoder(_Nothing).decode
_decode_name = msgspec.json.Decoder(str).decode


class _Window(NamedTuple):
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


def _windows(text: bytes, start: int, end: int) -> Iterator[_Window]:
    """``text`` from ``start``, outside of a string, to ``end``. No token but a string or a number is cut.

    Where the text is no JSON, what a window says is wrong, but the window holds the first fault.
    """
    inside = False
    while start < end:
        stop = min(start + _WINDOW, end)
        window = _inside(text, start, stop) if inside else _outside(text, start, stop, end)
        yield window
        start, inside = window.end, window.inside


def _inside(text: bytes, start: int, stop: int) -> _Window:
    found = _INSIDE.match(text, start, stop)
    cut = start if found is None else found.end()
    if cut < stop and text[cut] == _QUOTE:
        return _Window(start, cut + 1, began=True)
    # At the end of the window half an escape is left for the next one; elsewhere it is none.
    whole = cut == start or stop - cut >= _LONGEST_ESCAPE
    return _Window(start, stop if whole else cut, began=True, inside=True)


def _outside(text: bytes, start: int, stop: int, end: int) -> _Window:
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
        return _Window(start, stop)  # no JSON
    if inside:
        opened = _QUOTE_REVERSED.search(piece[::-1])
        return _Window(start, stop - (opened.start() if opened else 0), bare, _unpaired(bare), inside=True)
    if stop < end and not piece.endswith(b","):
        stop = start + (len(piece.rstrip(_HALF_NUMBER)) or len(piece))
    return _Window(start, stop, bare, _unpaired(bare))


def _unpaired(bare: bytes) -> bytes:
    brackets = bare.translate(None, _NOT_BRACKETS)
    for _ in range(_ROUNDS):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    kept = bytearray()
    for bracket in brackets:
        if kept and bracket in _CLOSING and kept[-1] in _OPENING:
            kept.pop()
        else:
            kept.append(bracket)
    return bytes(kept)


class _Grammar:
    """Holds windows to JSON's grammar, one after the other."""

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

    def check(self, window: _Window) -> None:
        """Raises msgspec.DecodeError, with the place in the whole text, and RecursionError."""
        prefix = self._prefix() + self._carry
        piece = self._text[window.start : window.end]
        # A little more, as it takes what ends too early for that and does not ask what else it is.
        more = self._text[window.end : window.end + _LOOKAHEAD]
        try:
            _skip(prefix + piece + more)
        except msgspec.DecodeError as error:
            fault = shifted(error, window.start - len(prefix))
            later = str(error) == _TRUNCATED or _place(fault) > window.end
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

    def _pass(self, window: _Window, piece: bytes) -> None:
        if window.began and window.inside:
            return
        self._since += window.brackets
        if window.inside:
            before = (self._carry + window.bare).rstrip(_SPACE)
            self._known(before.endswith(b":") if before else self._valued, b'"')
        elif window.bare.endswith(b","):
            self._known(False, b"")
        elif window.began:
            self._carry = b'""'
        else:
            self._carry += _LONG_RUNS.sub(b"", _STRING.sub(b'""', piece))

    def _known(self, valued: bool, carry: bytes) -> None:
        for bracket in self._since:
            if bracket in _OPENING:
                self._open.append(bracket)
            else:
                self._open.pop()
        self._since = b""
        self._valued, self._carry = valued, carry


class _Outline:
    """Finds where the members of an object, or the entries of a list, begin and end."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._depth = 0
        self._key: Span | None = None
        self._key_start = -1
        #: Where the part under way begins, and its value: behind the bracket or the comma, behind the colon.
        self._first = self._value = 0
        #: Parts that are whole and were not taken: the name with its quotes, if any, the part, the value with
        #: the space around it.
        self.found: list[tuple[Span | None, Span, Span]] = []

    def look(self, window: _Window) -> Steps[None]:
        opening = len(window.brackets.lstrip(_CLOSING))
        closing = len(window.brackets) - opening
        if self._depth - closing > 1:
            self._depth += opening - closing
            return
        start = window.start
        if window.began:
            start = self._rest(start, window.end)
        for number, token in enumerate(_TOKEN.finditer(self._text, start, window.end)):
            self._token(token)
            if number % _TOKENS == _TOKENS - 1:
                yield

    def _rest(self, start: int, end: int) -> int:
        """Behind the rest of a string."""
        rest = _REST.match(self._text, start, end)
        assert rest is not None, "it matches nothing, too"
        if rest[1] and self._key_start >= 0:
            self._key, self._key_start = (self._key_start, rest.end()), -1
        return rest.end()

    def _token(self, token: re.Match[bytes]) -> None:
        start = token.start()
        kind = self._text[start]
        if kind in _OPENING:
            self._depth += 1
            if self._depth == 1:
                self._first = self._value = start + 1
        elif kind in _CLOSING:
            self._depth -= 1
            if self._depth == 0:
                self._whole(start)
        elif self._depth == 1:
            self._at_top(token, kind)

    def _at_top(self, token: re.Match[bytes], kind: int) -> None:
        if kind == _COMMA:
            self._whole(token.start())
        elif kind == _COLON:
            self._value = token.end()
        elif self._value == self._first and self._key is None:
            # Of a list, too, where no colon follows and nobody asks for it.
            if token[1]:
                self._key = token.span()
            else:
                self._key_start = token.start()

    def _whole(self, end: int) -> None:
        self.found.append((self._key, (self._first, end), (self._value, end)))
        self._key, self._key_start = None, -1
        self._first = self._value = end + 1


class Members(NamedTuple):
    """``values`` are the wanted members' values; ``repeated`` all of the one that was asked for.

    ``cuts``: what to leave out so that the object has no such member, its comma included.
    """

    values: dict[str, Span]
    repeated: list[Span]
    cuts: list[Span]


#: So often may a member stand in one object if its places are asked for.
_MOST_REPEATED = 1024


def members(text: bytes, wanted: Collection[str], *, repeated: str = "") -> Steps[Members]:
    """Hold ``text`` to be a JSON object and find the last of each member called one of ``wanted``.

    Strings are not held to be UTF-8. Raises msgspec.DecodeError in msgspec's own words, and RecursionError.
    """
    grammar, outline = _Grammar(text, len(text)), _Outline(text)
    names = {name.encode(): name for name in wanted}
    found = Members({}, [], [])
    if not text:
        _skip(text)  # raises
    for window in _windows(text, 0, len(text)):
        grammar.check(window)
        yield
        yield from outline.look(window)
        for key, part, value in outline.found:
            name = None if key is None else _name(text, key, names)
            if name is not None:
                found.values[name] = yield from _trimmed(text, *value)
                if name == repeated:
                    found.repeated.append(found.values[name])
                    found.cuts.append(_cut(text, part))
        outline.found.clear()
        if len(found.repeated) > _MOST_REPEATED:
            raise msgspec.ValidationError(f"`{repeated}` stands in it more than {_MOST_REPEATED} times")
    return found


def members_of(text: bytes, span: Span, wanted: Collection[str]) -> Steps[dict[str, Span]]:
    """The last of each wanted member of the object at ``span`` of ``text``, which is known to be JSON."""
    outline = _Outline(text)
    names = {name.encode(): name for name in wanted}
    found: dict[str, Span] = {}
    for window in _windows(text, *span):
        yield from outline.look(window)
        yield
        for key, _, value in outline.found:
            name = None if key is None else _name(text, key, names)
            if name is not None:
                found[name] = yield from _trimmed(text, *value)
        outline.found.clear()
    return found


def entries_of(text: bytes, span: Span) -> Steps[list[Span]]:
    """The entries of the list at ``span`` of ``text``, which is known to be JSON."""
    outline = _Outline(text)
    listed: list[Span] = []
    for window in _windows(text, *span):
        yield from outline.look(window)
        yield
        for _, _, value in outline.found:
            start, end = yield from _trimmed(text, *value)
            if start < end:  # else the list is empty
                listed.append((start, end))
        outline.found.clear()
    return listed


def object_of(text: bytes) -> bool:
    """Whether ``text`` begins as an object does, or with so many blanks that it may."""
    return text[:_WINDOW].lstrip(_SPACE)[:1] in (b"{", b"")


def raw(text: bytes, span: Span) -> msgspec.Raw:
    """``text`` at ``span``, without a copy."""
    return msgspec.Raw(memoryview(text)[span[0] : span[1]])


def spliced(text: bytes, spans: Sequence[Span], key: str, value: bytes) -> list[memoryview]:
    """``text``, an object, with ``value`` at all of ``spans``, those of its member ``key``; as a new first
    member where there are none. In pieces, as a copy would take long."""
    view, given = memoryview(text), memoryview(value)
    if not spans:
        start = text.find(b"{") + 1
        comma = b"" if _EMPTY.match(text, start) else b","
        return [view[:start], memoryview(b'"%b":%b%b' % (key.encode(), value, comma)), view[start:]]
    parts: list[memoryview] = []
    done = 0
    for start, end in spans:
        parts += (view[done:start], given)
        done = end
    return [*parts, view[done:]]


def pieces(text: bytes, span: Span) -> Iterator[bytes]:
    """The text at ``span``, cut behind commas; only what has none for long is cut elsewhere."""
    start, end = span
    while start < end:
        stop = min(start + _WINDOW, end)
        if stop < end:
            stop = text.rfind(b",", start, stop) + 1 or stop
        piece = text[start:stop]
        if stop < end and not piece.endswith(b","):
            piece = piece.rstrip(_OPENED) or piece
        yield piece
        start += len(piece)


def shifted(error: msgspec.DecodeError, by: int) -> msgspec.DecodeError:
    """``error`` of a piece, with its place in the whole, which the piece lies ``by`` bytes into."""
    return type(error)(_PLACE.sub(lambda place: f"(byte {int(place[1]) + by})", str(error)))


def _place(error: msgspec.DecodeError) -> int:
    """0 where it names none."""
    named = _PLACE.search(str(error))
    return int(named[1]) if named else 0


def _name(text: bytes, key: Span, names: dict[bytes, str]) -> str | None:
    start, end = key
    spelled = text[start + 1 : end - 1] if end - start < _LONGEST_NAME else b""
    if b"\\" in spelled:
        try:
            spelled = _decode_name(text[start:end]).encode()
        except (msgspec.DecodeError, UnicodeEncodeError):
            return None  # not UTF-8
    return names.get(spelled)


#: In bytes, every character of it escaped.
_LONGEST_NAME = 512


def _cut(text: bytes, part: Span) -> Span:
    start, end = part
    if text[end : end + 1] == b",":
        return start, end + 1
    return (start - 1 if text[start - 1 : start] == b"," else start), end


def _trimmed(text: bytes, start: int, end: int) -> Steps[Span]:
    while start < end and text[start] in _SPACE:
        piece = text[start : min(start + _WINDOW, end)]
        start += len(piece) - len(piece.lstrip(_SPACE))
        yield
    while start < end and text[end - 1] in _SPACE:
        piece = text[max(start, end - _WINDOW) : end]
        end -= len(piece) - len(piece.rstrip(_SPACE))
        yield
    return start, end
