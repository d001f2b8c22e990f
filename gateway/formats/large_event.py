"""An event of many MiB, taken in and passed on in steps of bounded work.

Owns: putting it together, finding its data, a short text that tells what is looked at of a long one, giving
it out in pieces. Must never enter: a dialect, what a member means, I/O.

A reader that finds one in its scanner puts what is to be done into ``ReplyFacts.steps``. Each step takes a
few milliseconds; what it yields is passed on.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Protocol

import msgspec

from gateway.formats.json.steps import Steps, entries_of, members, members_of
from gateway.formats.json.windows import Span
from gateway.formats.sse import LargeEvent

#: What becomes of an event: bytes to be passed on, or None for a step that gave none.
OutputSteps = Generator[bytes | None, None, None]

#: Bytes that are copied, searched or given out at once.
STEP = 1024 * 1024
#: A value over this, in bytes, is not read, and of all that is read no more than so much.
SUMMARY_LIMIT = 1024 * 1024

#: Members that are looked at; of one that is an object, or a list of objects, its members.
Shape = Mapping[str, "Shape | None"]

_LINE_END = re.compile(rb"\r\n?|\n")
_LINES = 1024
#: In place of a value that is too long to be read: of its kind, and not empty.
_STAND_INS = {b'"': b'"+"', b"{": b'{"+":0}', b"[": b"[0]"}


class StreamRewriter(Protocol):
    """Rewrites a text that comes in pieces."""

    def feed(self, data: bytes) -> bytes: ...

    def flush(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Summary:
    """What is looked at, as a short JSON text; where in the long one the members called ``cut`` stand, with
    their commas, and the last one's value."""

    text: bytes
    cuts: Sequence[Span]
    value: bytes | None


def assemble(event: LargeEvent) -> Steps[bytes]:
    """Its bytes."""
    whole, size = BytesIO(), 0
    pieces = event.pieces[::-1]
    event.pieces.clear()
    while pieces:
        size += whole.write(pieces.pop())
        if size >= STEP:
            size = 0
            yield
    return whole.getvalue()


def find_data(event: bytes, *, lines: bool) -> Steps[tuple[bytes, Span] | None]:
    """A text and where in it the event's data stands; None for an event that has none.

    ``lines``: it may have several lines.
    """
    if not lines and event.startswith(b"data:"):
        return event, (6 if event.startswith(b"data: ") else 5, len(event) - 2)
    spans: list[Span] = []
    start = 0
    for found in _line_ends(event):
        if found is None:
            yield
            continue
        if event.startswith(b"data:", start):
            spans.append((start + (6 if event.startswith(b"data: ", start) else 5), found[0]))
        elif event[start : found[0]] == b"data":
            spans.append((found[0], found[0]))
        start = found[1]
    if len(spans) < 2:
        return (event, spans[0]) if spans else None
    together = BytesIO()
    for number, (first, end) in enumerate(spans):
        together.write(b"\n" * (number > 0))
        for place in range(first, end, STEP):
            together.write(event[place : min(place + STEP, end)])
            yield
        if number % _LINES == _LINES - 1:
            yield
    text = together.getvalue()
    return text, (0, len(text))


def _line_ends(event: bytes) -> Generator[Span | None, None, None]:
    """Where each line's end stands; None after every so much work."""
    start, number = 0, 0
    while start < len(event):
        stop = min(start + STEP, len(event))
        if stop < len(event) and event[stop - 1 : stop] == b"\r":
            stop += 1  # its line feed, if one follows
        for number, found in enumerate(_LINE_END.finditer(event, start, stop)):
            yield found.span()
            if number % _LINES == _LINES - 1:
                yield None
        yield None
        start = stop


def summarize(text: bytes, span: Span, shape: Shape, *, cut: str = "") -> Steps[Summary]:
    """Hold the text at ``span`` to be a JSON object in UTF-8, and read of it what ``shape`` says.

    Raises msgspec.DecodeError, UnicodeDecodeError and RecursionError, as reading it at once does.
    """
    found = yield from members(text, shape.keys(), repeated=cut, span=span)
    yield from _check_utf8(text, span)
    kept = _SummaryText()
    yield from _object(text, found.values, shape, kept)
    named = found.values.get(cut)
    return Summary(bytes(kept.text), found.cuts, None if named is None else text[slice(*named)])


class _SummaryText:
    def __init__(self) -> None:
        self.text = bytearray()

    @property
    def full(self) -> bool:
        return len(self.text) > SUMMARY_LIMIT


def _object(text: bytes, values: Mapping[str, Span], shape: Shape, kept: _SummaryText) -> Steps[None]:
    kept.text += b"{"
    for number, (name, span) in enumerate(values.items()):
        kept.text += b",%b:" % msgspec.json.encode(name) if number else b"%b:" % msgspec.json.encode(name)
        yield from _value(text, span, shape[name], kept)
    kept.text += b"}"


def _value(text: bytes, span: Span, shape: Shape | None, kept: _SummaryText) -> Steps[None]:
    start, end = span
    kind = text[start : start + 1]
    if shape is not None and kind == b"{":
        yield from _object(text, (yield from members_of(text, span, shape.keys())), shape, kept)
    elif shape is not None and kind == b"[":
        yield from _list(text, span, shape, kept)
    elif end - start > SUMMARY_LIMIT or kept.full:
        kept.text += _STAND_INS.get(kind, b"null")
    else:
        kept.text += text[start:end]


def _list(text: bytes, span: Span, shape: Shape, kept: _SummaryText) -> Steps[None]:
    """Entries that are no longer read once so much was stand for nothing."""
    entries: list[Span] = []
    some = False
    kept.text += b"["
    for _ in entries_of(text, span, entries):
        for entry in () if kept.full else entries:
            kept.text += b"," * some
            some = True
            yield from _value(text, entry, shape, kept)
        entries.clear()
        yield
    kept.text += b"]"


def _check_utf8(text: bytes, span: Span) -> Steps[None]:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    plain = True
    for start in range(span[0], span[1], STEP):
        stop = min(start + STEP, span[1])
        piece = text[start:stop]
        if not (plain and piece.isascii()):
            plain = False  # a character may be cut in two
            decode(piece, stop == span[1])
        yield


def emit(event: bytes, cuts: Sequence[Span], through: Sequence[StreamRewriter]) -> OutputSteps:
    """``event`` in pieces, but for what stands at ``cuts``, rewritten by each of ``through``."""
    start = 0
    for left, right in [*cuts, (len(event), len(event))]:
        for place in range(start, left, STEP):
            yield _through(event[place : min(place + STEP, left)], through)
        start = right
    tail = b""
    for rewriter in through:
        tail = rewriter.feed(tail) + rewriter.flush()
    yield tail


def _through(data: bytes, through: Sequence[StreamRewriter]) -> bytes:
    for rewriter in through:
        data = rewriter.feed(data)
    return data
