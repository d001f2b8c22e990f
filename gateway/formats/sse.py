"""Finding server-sent events in bytes.

Owns: where an event ends and what its data is. Must never enter: a dialect, JSON, I/O, third-party packages.
Source of the rules: the WHATWG event-stream format; the engines use ``data: ...`` and ``\\n\\n`` only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gateway.errors import UpstreamIncomplete, UpstreamMalformed

#: Bytes. A larger event is malformed.
DEFAULT_EVENT_LIMIT = 64 * 1024 * 1024

#: Bytes. Reads of an unfinished event that are smaller than this are collected in one buffer.
PIECE: Final = 8 * 1024

#: Bytes. Readers process a larger event in steps, as joining its pieces would take long.
LARGE_EVENT_SIZE = 8 * 1024 * 1024

#: The bytes of a complete event, its closing blank line included, and the data in it (None: it has none).
Event = tuple[bytes, bytes | None]

_BLANK_LINE = re.compile(rb"\n\n|\r\r|\n\r\n|\n\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")
#: `int in bytes` is about ten times faster than `bytes in bytes`.
_NEWLINE: Final = ord("\n")


class LargeEvent:
    """A complete event over ``LARGE_EVENT_SIZE``, in pieces, and the bytes read after it.

    ``lines``: it may have several lines.
    """

    __slots__ = ("lines", "pieces", "rest")

    def __init__(self, pieces: Sequence[bytes | bytearray], rest: bytes, *, lines: bool) -> None:
        self.pieces = list(pieces)
        self.rest = rest
        self.lines = lines


class EventScanner:
    """Cuts a byte stream into complete events, whose bytes joined are the input, and finds their data.

    Holds at most one unfinished event, up to ``limit`` bytes. An event over ``large_from`` bytes, if that is
    given, is not among the events that ``feed`` returns: it is then found in ``large``, with the bytes read
    after it, which are to be fed once more.

    It has three states:

    * Empty (``_size`` is 0): the last read ended with a complete event. ``feed`` handles this common case
      itself.
    * In an event: the unfinished event is in ``_pieces`` and ``_fragments``; ``_continued`` adds to it.
    * Carriage returns (``_has_cr``, for the rest of the stream): ``_cut`` searches for any kind of blank
      line.
    """

    __slots__ = (
        "_large_from",
        "_limit",
        "_lines",
        "_has_cr",
        "_pieces",
        "_fragments",
        "_searched",
        "_size",
        "large",
    )

    def __init__(self, limit: int = DEFAULT_EVENT_LIMIT, large_from: int | None = None) -> None:
        self._limit = limit
        self._large_from = limit if large_from is None else large_from
        #: The unfinished event: pieces as they were read, and after them the fragments, small reads collected
        #: in one buffer.
        self._pieces: list[bytes] = []
        self._fragments = bytearray()
        self._size = 0
        #: True if a line ends in it.
        self._lines = False
        #: True if a carriage return was seen: then blank lines of any kind are searched for, and the entire
        #: unfinished event is in the fragments.
        self._has_cr = False
        self._searched = 0
        self.large: LargeEvent | None = None

    def take_large_event(self) -> LargeEvent:
        """Return the large event, which must be there, and forget it."""
        large, self.large = self.large, None
        assert large is not None
        return large

    @property
    def pending(self) -> bytes:
        """The bytes of the unfinished event. Raises UpstreamIncomplete if it is large."""
        if self._size > self._large_from:
            raise UpstreamIncomplete("The worker's stream ended inside an event")
        return b"".join((*self._pieces, self._fragments))

    def feed(self, data: bytes) -> list[Event]:
        """Return the events completed by ``data``, in order. Raises UpstreamMalformed over the limit."""
        # This runs for every event: each byte is searched for line ends once, and by ``find``, as ``in``
        # first checks whether it was given a number.
        if self._has_cr or data.find(b"\r") >= 0:
            return self._cut(data)
        if self._size:
            return self._continued(data)
        # Most reads: nothing is left over from the last one, and there is mostly one event.
        line = data.find(b"\n")
        if line < 0:
            self._keep(data)
            return []
        if line == len(data) - 2 and data.startswith(b"data: ") and data.endswith(b"\n\n"):
            return [(data, data[6:-2])]
        *events, rest = data.split(b"\n\n")
        if rest:
            self._lines = rest.find(b"\n") >= 0
            self._keep(rest)
        return [
            (
                event + b"\n\n",
                event[6:] if event.startswith(b"data: ") and _NEWLINE not in event else payload(event),
            )
            for event in events
        ]

    def _continued(self, data: bytes) -> list[Event]:
        """Continue the unfinished event with ``data``; its bytes are joined only when it is complete."""
        # A search for two bytes takes many times that for one, and most reads do not contain one.
        line = data.find(b"\n")
        if line < 0:
            self._keep(data)
            return []
        if line == 0 and self._lines and (self._fragments or self._pieces[-1]).endswith(b"\n"):
            return self._ended(data, 1)
        blank = data.find(b"\n\n", line)
        if blank < 0:
            self._lines = True
            self._keep(data)
            return []
        self._lines = self._lines or blank > line
        return self._ended(data, blank + 2)

    def _ended(self, data: bytes, end: int) -> list[Event]:
        """Return the event that ends at ``end`` in ``data``, and all events after it."""
        if self._size + end > self._large_from:
            pieces = [*self._pieces, bytes(self._fragments), data[:end]]
            self.large = LargeEvent(pieces, data[end:], lines=self._lines)
            self._forget()
            return []
        event = b"".join((*self._pieces, self._fragments, data[:end]))
        lines = self._lines
        self._forget()
        found = (event, event[6:-2] if not lines and event.startswith(b"data: ") else payload(event))
        return [found] if end == len(data) else [found, *self.feed(data[end:])]

    def _forget(self) -> None:
        self._pieces.clear()
        self._fragments.clear()
        self._size = 0
        self._lines = False

    def _cut(self, data: bytes) -> list[Event]:
        if not self._has_cr:
            self._has_cr = True
            self._fragments = bytearray(b"").join((*self._pieces, self._fragments))
            self._pieces.clear()
            self._searched = max(0, self._size - 3)
        events: list[Event] = []
        pending = self._fragments
        pending += data
        start = large = 0
        for match in _BLANK_LINE.finditer(pending, self._searched):
            end = match.end()
            if match.group() == b"\n\r":
                # Either "\n\r" ends the event or the "\n" after "\r" is still to come; only the next byte
                # tells.
                if end == len(pending):
                    break
            if end > self._large_from and not events:
                large = end  # an event this large spans several reads, so it is the first
                break
            event = bytes(pending[start:end])
            events.append((event, payload(event)))
            start = end
        if large:
            return self._large_of_fragments(large)
        del pending[:start]
        # A blank line may be split over reads: what may be its beginning is searched again.
        self._searched = max(0, len(pending) - 3)
        self._grown(len(pending))
        return events

    def _large_of_fragments(self, end: int) -> list[Event]:
        pending, self._fragments = self._fragments, bytearray()
        rest = bytes(pending[end:])
        del pending[end:]
        self.large = LargeEvent([pending], rest, lines=True)
        self._searched = self._size = 0
        return []

    def _keep(self, rest: bytes) -> None:
        """Keep ``rest`` as it is, unless it is small: a buffer that grows is copied again and again."""
        size = len(rest)
        if size >= PIECE:
            if self._fragments:
                self._sweep()
            self._pieces.append(rest)
        else:
            self._fragments += rest
            if len(self._fragments) >= PIECE:
                self._sweep()
        self._grown(self._size + size)

    def _sweep(self) -> None:
        """Turn the fragments into a piece."""
        self._pieces.append(bytes(self._fragments))
        self._fragments.clear()

    def _grown(self, size: int) -> None:
        self._size = size
        if size > self._limit:
            raise UpstreamMalformed("The worker sent an event over the size limit.", limit="event")


def payload(event: bytes) -> bytes | None:
    """Return the event's data, lines joined by ``\\n``; None for an event without data, such as a comment."""
    # Most events are one line, and splitting a long one by a regular expression is slow.
    if event.startswith(b"data: ") and event.find(b"\r") < 0 and event.find(b"\n") == len(event) - 2:
        return event[6:-2]
    parts = _LINE_END.split(event) if event.find(b"\r") >= 0 else event.split(b"\n")
    lines = [_data_of(line) for line in parts if line.startswith(b"data")]
    data = [line for line in lines if line is not None]
    return b"\n".join(data) if data else None


def _data_of(line: bytes) -> bytes | None:
    name, colon, value = line.partition(b":")
    if name != b"data":
        return None
    return value[1:] if value.startswith(b" ") else value
