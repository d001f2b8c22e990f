"""Events of many MiB, read and relayed in steps of bounded work.

Owns: joining their pieces, finding their data, a short summary of the wanted members, sending them in pieces.
Must never enter: a dialect, what a member means, I/O.

A reader that finds a large event in its scanner sets ``ReplyFacts.steps``. Each step takes a few
milliseconds; what it yields is relayed.
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

#: The steps of an event: each yields bytes to be relayed, or None.
OutputSteps = Generator[bytes | None, None, None]

#: Bytes that are copied, searched or yielded at once.
STEP = 1024 * 1024
#: Bytes. A larger value is not read, and a summary is not much longer than this.
SUMMARY_LIMIT = 1024 * 1024

#: The wanted members; for one that is an object, or a list of objects, its wanted members.
Shape = Mapping[str, "Shape | None"]

_LINE_END = re.compile(rb"\r\n?|\n")
_LINES = 1024
#: Replaces a value that is too long to be read, by its first character: of the same kind, and not empty.
_STAND_INS = {b'"': b'"+"', b"{": b'{"+":0}', b"[": b"[0]"}


class StreamRewriter(Protocol):
    """A rewriter of a text that comes in pieces."""

    def feed(self, data: bytes) -> bytes: ...

    def flush(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Summary:
    """The wanted members of a long object as a short JSON text.

    ``cuts``: the positions of the members to be cut out, with their commas; ``value``: the last
    one's value.
    """

    text: bytes
    cuts: Sequence[Span]
    value: bytes | None


def assemble(event: LargeEvent) -> Steps[bytes]:
    """Return the event's bytes."""
    text, size = BytesIO(), 0
    pieces = event.pieces[::-1]
    event.pieces.clear()
    while pieces:
        size += text.write(pieces.pop())
        if size >= STEP:
            size = 0
            yield
    return text.getvalue()


def find_data(event: bytes, *, lines: bool) -> Steps[tuple[bytes, Span] | None]:
    """Return a text and the position of the event's data in it; None for an event without data.

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
        for position in range(first, end, STEP):
            together.write(event[position : min(position + STEP, end)])
            yield
        if number % _LINES == _LINES - 1:
            yield
    text = together.getvalue()
    return text, (0, len(text))


def _line_ends(event: bytes) -> Generator[Span | None, None, None]:
    """Yield the position of each line's end, and None after each step."""
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
    """Validate the text at ``span`` as a JSON object in UTF-8, and return the members that ``shape`` names.

    Raises msgspec.DecodeError, UnicodeDecodeError and RecursionError, as reading it at once does.
    """
    found = yield from members(text, shape.keys(), repeated=cut, span=span)
    yield from _check_utf8(text, span)
    summary = _SummaryText()
    yield from _object(text, found.values, shape, summary)
    last_span = found.values.get(cut)
    return Summary(bytes(summary.text), found.cuts, None if last_span is None else text[slice(*last_span)])


class _SummaryText:
    def __init__(self) -> None:
        self.text = bytearray()

    @property
    def full(self) -> bool:
        return len(self.text) > SUMMARY_LIMIT


def _object(text: bytes, values: Mapping[str, Span], shape: Shape, summary: _SummaryText) -> Steps[None]:
    summary.text += b"{"
    for number, (name, span) in enumerate(values.items()):
        summary.text += b",%b:" % msgspec.json.encode(name) if number else b"%b:" % msgspec.json.encode(name)
        yield from _value(text, span, shape[name], summary)
    summary.text += b"}"


def _value(text: bytes, span: Span, shape: Shape | None, summary: _SummaryText) -> Steps[None]:
    start, end = span
    kind = text[start : start + 1]
    if shape is not None and kind == b"{":
        yield from _object(text, (yield from members_of(text, span, shape.keys())), shape, summary)
    elif shape is not None and kind == b"[":
        yield from _list(text, span, shape, summary)
    elif end - start > SUMMARY_LIMIT or summary.full:
        summary.text += _STAND_INS.get(kind, b"null")
    else:
        summary.text += text[start:end]


def _list(text: bytes, span: Span, shape: Shape, summary: _SummaryText) -> Steps[None]:
    """Add the entries of a list until the summary is full; later entries are left out."""
    entries: list[Span] = []
    has_entries = False
    summary.text += b"["
    for _ in entries_of(text, span, entries):
        for entry in () if summary.full else entries:
            summary.text += b"," * has_entries
            has_entries = True
            yield from _value(text, entry, shape, summary)
        entries.clear()
        yield
    summary.text += b"]"


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
    """Yield ``event`` in pieces, without the parts at ``cuts``, rewritten by each of ``through``."""
    start = 0
    for left, right in [*cuts, (len(event), len(event))]:
        for position in range(start, left, STEP):
            piece = event[position : min(position + STEP, left)]
            for rewriter in through:
                piece = rewriter.feed(piece)
            yield piece
        start = right
    tail = b""
    for rewriter in through:
        tail = rewriter.feed(tail) + rewriter.flush()
    yield tail
