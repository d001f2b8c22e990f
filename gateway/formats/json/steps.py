"""Reading a large JSON object in steps of bounded work, so that the event loop is not blocked.

Owns: the positions of the members of an object and of the entries of a list. Must never enter: a dialect,
what a member means, I/O.

Every generator here yields after at most a few milliseconds of work and returns its result.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec

from gateway.formats.json import windows as json_windows
from gateway.formats.json.windows import CLOSING, OPENING, SPACE, GrammarChecker, Span, Window, windows

T = TypeVar("T")
#: Work done in steps: a generator to be run to its end, with a pause wherever it yields.
Steps = Generator[None, None, T]

#: Bytes. A larger text is read in steps; a smaller one takes a few milliseconds at most.
STEPWISE_SIZE = 1024 * 1024

#: Tokens read between two yields.
_TOKENS = 1024
#: Bytes of the longest member name that is looked up. It allows for names in which each character is escaped.
_LONGEST_NAME = 512
_COMMA, _COLON = b",:"
_EMPTY = re.compile(rb"[ \t\r\n]*+\}")
# Strings up to their end or that of the text; brackets, commas, colons.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[{}\[\],:]', re.DOTALL)
_REST = re.compile(rb'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)

_decode_name = msgspec.json.Decoder(str).decode


class _Outline:
    """The places where the members of an object, or the entries of a list, begin and end.

    The positions while ``{"a": [1, 2], "b": 3}`` is read, at the comma before ``"b"`` (depth 1)::

        {"a": [1, 2], "b": 3}
         ^   ^      ^
         |   |      end of the part and of its value
         |   _value, after the colon
         _first, where the part and its key begin

    The window may end inside a string. If that string is a key, ``_key_start`` is where it began.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._depth = 0
        self._key: Span | None = None
        self._key_start = -1
        #: Where the current part begins, and its value: after the bracket or the comma, after the colon.
        self._first = self._value = 0
        #: Parts that are complete and not yet taken: the name with its quotes, if any, the part, the value
        #: with the space around it.
        self.found: list[tuple[Span | None, Span, Span]] = []

    def scan(self, window: Window) -> Steps[None]:
        opening = len(window.brackets.lstrip(CLOSING))
        closing = len(window.brackets) - opening
        if self._depth - closing > 1:
            self._depth += opening - closing
            return
        start = window.start
        if window.began:
            start = self._rest(start, window.end)
        for number, token in enumerate(_TOKEN.finditer(self.text, start, window.end)):
            self._token(token)
            if number % _TOKENS == _TOKENS - 1:
                yield

    def _rest(self, start: int, end: int) -> int:
        """Return the end of the string that began in an earlier window."""
        rest = _REST.match(self.text, start, end)
        assert rest is not None, "it matches nothing, too"
        if rest[1] and self._key_start >= 0:
            self._key, self._key_start = (self._key_start, rest.end()), -1
        return rest.end()

    def _token(self, token: re.Match[bytes]) -> None:
        start = token.start()
        kind = self.text[start]
        if kind in OPENING:
            self._depth += 1
            if self._depth == 1:
                self._first = self._value = start + 1
        elif kind in CLOSING:
            self._depth -= 1
            if self._depth == 0:
                self._end_part(start)
        elif self._depth == 1:
            self._at_top(token, kind)

    def _at_top(self, token: re.Match[bytes], kind: int) -> None:
        if kind == _COMMA:
            self._end_part(token.start())
        elif kind == _COLON:
            self._value = token.end()
        elif self._value == self._first and self._key is None:
            # In a list as well, where no colon follows and nobody uses the name.
            if token[1]:
                self._key = token.span()
            else:
                self._key_start = token.start()

    def _end_part(self, end: int) -> None:
        self.found.append((self._key, (self._first, end), (self._value, end)))
        self._key, self._key_start = None, -1
        self._first = self._value = end + 1


class MemberSpans(NamedTuple):
    """The members that were found: ``values`` of the wanted ones, ``repeated`` all values of one name.

    ``cuts``: what to leave out so that the object has no member of that name, its comma included.
    """

    values: dict[str, Span]
    repeated: list[Span]
    cuts: list[Span]


#: The most members of one name whose places are returned.
_MOST_REPEATED = 1024


def members(
    text: bytes, wanted: Collection[str], *, repeated: str = "", span: Span | None = None
) -> Steps[MemberSpans]:
    """Validate ``text``, or its part at ``span``, as a JSON object; return the last member of each name in
    ``wanted``, and the places of all members called ``repeated``.

    Strings, names included, need not be UTF-8. Raises msgspec.DecodeError with msgspec's own text, and
    RecursionError.
    """
    start, end = span or (0, len(text))
    grammar, outline = GrammarChecker(text, end), _Outline(text)
    names = {name.encode(): name for name in wanted}
    found = MemberSpans({}, [], [])
    if start == end:
        raise msgspec.DecodeError(json_windows.TRUNCATED)
    for window in windows(text, start, end):
        grammar.check(window)
        yield
        yield from outline.scan(window)
        for key, part, value in outline.found:
            name = None if key is None else _name(text, key, names)
            if name is not None:
                found.values[name] = yield from _trimmed(text, *value)
                if name == repeated:
                    found.repeated.append(found.values[name])
                    found.cuts.append(_cut(text, part))
        outline.found.clear()
        if len(found.repeated) > _MOST_REPEATED:
            raise msgspec.ValidationError(f"`{repeated}` occurs in it more than {_MOST_REPEATED} times")
    return found


def members_of(text: bytes, span: Span, wanted: Collection[str]) -> Steps[dict[str, Span]]:
    """Return the last member of each name in ``wanted`` of the object at ``span`` of ``text``, which is
    valid JSON.
    """
    outline = _Outline(text)
    names = {name.encode(): name for name in wanted}
    found: dict[str, Span] = {}
    for window in windows(text, *span):
        yield from outline.scan(window)
        yield
        for key, _, value in outline.found:
            name = None if key is None else _name(text, key, names)
            if name is not None:
                found[name] = yield from _trimmed(text, *value)
        outline.found.clear()
    return found


def entries_of(text: bytes, span: Span, found: list[Span]) -> Steps[None]:
    """Append the entries of the list at ``span`` of ``text``, which is valid JSON, to ``found``.

    About a thousand at a time, and none after the last yield: a caller that empties ``found`` at each yield
    holds no more.
    """
    outline = _Outline(text)
    for window in windows(text, *span):
        for _ in outline.scan(window):
            yield from _entries(outline, found)
        yield from _entries(outline, found)


def _entries(outline: _Outline, found: list[Span]) -> Steps[None]:
    text = outline.text
    for _, _, (start, end) in outline.found:
        if text[start] in SPACE or text[end - 1] in SPACE:
            start, end = yield from _trimmed(text, start, end)
        if start < end:  # else the list is empty
            found.append((start, end))
    outline.found.clear()
    yield


def starts_as_object(text: bytes) -> bool:
    """Return True if ``text`` begins as an object does, or with so much space that it may.

    Raises msgspec.DecodeError if it begins as no JSON does.
    """
    beginning = text[: json_windows.WINDOW]
    if beginning.lstrip(SPACE)[:1] in (b"{", b""):
        return True
    with suppress(msgspec.ValidationError):
        json_windows.skip(beginning)
    return False


def raw(text: bytes, span: Span) -> msgspec.Raw:
    """Return ``text`` at ``span``, without a copy."""
    return msgspec.Raw(memoryview(text)[span[0] : span[1]])


class NewValue(NamedTuple):
    """The new value of the member ``key`` of an object, which has values at ``spans``."""

    key: str
    value: bytes
    spans: Sequence[Span]


def spliced(text: bytes, changes: Sequence[NewValue]) -> list[memoryview]:
    """Return the object ``text`` with ``changes``, a value that it did not have as a new first member. In
    pieces, as a copy would take long.
    """
    places = [(start, end, change.value) for change in changes for start, end in change.spans]
    added = b",".join(
        b'"%b":%b' % (change.key.encode(), change.value) for change in changes if not change.spans
    )
    if added:
        start = text.find(b"{") + 1
        places.append((start, start, added if _EMPTY.match(text, start) else added + b","))
    view = memoryview(text)
    parts: list[memoryview] = []
    done = 0
    for start, end, value in sorted(places):
        parts += (view[done:start], memoryview(value))
        done = end
    return [*parts, view[done:]]


def _name(text: bytes, key: Span, names: dict[bytes, str]) -> str | None:
    start, end = key
    name_text = text[start + 1 : end - 1] if end - start < _LONGEST_NAME else b""
    if b"\\" in name_text:
        try:
            name_text = _decode_name(text[start:end]).encode()
        except (msgspec.DecodeError, UnicodeEncodeError):
            return None  # not UTF-8
    return names.get(name_text)


def _cut(text: bytes, part: Span) -> Span:
    start, end = part
    if text[end : end + 1] == b",":
        return start, end + 1
    return (start - 1 if text[start - 1 : start] == b"," else start), end


def _trimmed(text: bytes, start: int, end: int) -> Steps[Span]:
    while start < end and text[start] in SPACE:
        piece = text[start : min(start + json_windows.WINDOW, end)]
        start += len(piece) - len(piece.lstrip(SPACE))
        yield
    while start < end and text[end - 1] in SPACE:
        piece = text[max(start, end - json_windows.WINDOW) : end]
        end -= len(piece) - len(piece.rstrip(SPACE))
        yield
    return start, end
