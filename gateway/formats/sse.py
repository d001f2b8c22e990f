"""Finding server-sent events in bytes.

Owns: where an event ends and what its data is. Must never enter: a dialect, JSON, I/O, third-party packages.
Source of the rules: the WHATWG event-stream format; both engines use ``data: ...`` and ``\\n\\n`` only.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.errors import UpstreamMalformed

#: An event larger than this is taken as nonsense rather than held any longer, in bytes.
DEFAULT_EVENT_LIMIT = 64 * 1024 * 1024

#: The bytes of a whole event, its closing blank line included, and the data in it (None: it has none).
Event = tuple[bytes, bytes | None]

_BLANK_LINE = re.compile(rb"\n\n|\r\r|\n\r\n|\n\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")
#: A number, as to look for it in bytes takes a tenth of what looking for a bytes of one takes.
_NEWLINE: Final = ord("\n")


class EventScanner:
    """Cuts a byte stream into whole events, whose bytes joined are the input, and finds their data.

    Holds at most one unfinished event, up to ``limit`` bytes.
    """

    __slots__ = ("_limit", "_odd", "_pending", "_searched")

    def __init__(self, limit: int = DEFAULT_EVENT_LIMIT) -> None:
        self._limit = limit
        self._pending = bytearray()
        self._searched = 0
        #: A carriage return was seen: blank lines of any kind are looked for.
        self._odd = False

    @property
    def pending(self) -> bytes:
        """Bytes of the unfinished event."""
        return bytes(self._pending)

    def feed(self, data: bytes) -> list[Event]:
        """Whole events completed by ``data``, in order. Raises UpstreamMalformed over the limit."""
        # Work for every event that passes: each byte is searched for line ends once, and by ``find``, as
        # ``in`` first asks whether it was given a number.
        if self._odd or data.find(b"\r") >= 0:
            self._odd = True
            self._pending += data
            return self._cut()
        if self._pending:
            return self._continued(data)
        # Most reads: nothing left over from the last one, and mostly one event.
        if data.startswith(b"data: ") and data.find(b"\n") == len(data) - 2 and data.endswith(b"\n\n"):
            return [(data, data[6:-2])]
        *events, rest = data.split(b"\n\n")
        if rest:
            self._keep(rest)
        return [
            (
                event + b"\n\n",
                event[6:] if event.startswith(b"data: ") and _NEWLINE not in event else payload(event),
            )
            for event in events
        ]

    def _continued(self, data: bytes) -> list[Event]:
        """``data`` goes on with the unfinished event, whose bytes are moved only once it is whole."""
        pending = self._pending
        split = data[:1] == b"\n" and pending[-1:] == b"\n"
        end = 1 if split else data.find(b"\n\n") + 2
        if end < 2 and not split:
            self._keep(data)
            return []
        event = bytes(pending + data[:end])
        pending.clear()
        self._searched = 0
        return [(event, payload(event)), *self.feed(data[end:])]

    def _cut(self) -> list[Event]:
        events: list[Event] = []
        pending = self._pending
        start = 0
        for match in _BLANK_LINE.finditer(pending, self._searched):
            end = match.end()
            if match.group() == b"\n\r":
                # Either "\n\r" closes the event or its "\n" is still to come; only the next byte tells.
                if end == len(pending):
                    break
            event = bytes(pending[start:end])
            events.append((event, payload(event)))
            start = end
        del pending[:start]
        self._keep(b"")
        return events

    def _keep(self, rest: bytes) -> None:
        self._pending += rest
        # A blank line may be split over reads: what can be its beginning is looked at again.
        self._searched = max(0, len(self._pending) - 3)
        if len(self._pending) > self._limit:
            raise UpstreamMalformed("The worker sent an event over the size limit.", limit="event")


def payload(event: bytes) -> bytes | None:
    """The event's data, lines joined by ``\\n``; None for an event that carries none (a comment, say)."""
    # Most events are one line, and a long one is not to be taken apart by an expression.
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
