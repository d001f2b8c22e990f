"""What the processes of one gateway say to their supervisor, and it to them.

Owns: the words and how they are written: lines of ``VERB NUMBER BODY``, the body JSON in ASCII. Must never
enter: sockets, who says what when.

The supervisor passes bodies on unread, so it costs the same whatever they hold.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Verb(StrEnum):
    # A process, about itself.
    SERVING = "serving"  # it accepts connections now
    USABLE = "usable"  # body: whether it has a usable worker
    COUNTED = "counted"  # body: all it has counted so far
    OPEN = "open"  # body: how many exchanges it still has, said while it drains
    # A process asks all others, by way of the supervisor, which then asks them in the same words.
    METRICS = "metrics"  # body of the question: what the asker has counted; of an answer: the same
    LOADS = "loads"
    ABORT = "abort"
    MARKS = "marks"  # body: what was said of workers, to be known by all
    ALL_MARKS = "all_marks"  # what was said of workers before the asker was there
    ANSWER = "answer"  # body: what the one who was asked has to say
    # The supervisor.
    ANSWERS = "answers"  # body: a list of what the others answered
    STATE = "state"  # body: how the whole gateway is
    END = "end"  # cut what still runs and end


class Frame(NamedTuple):
    """``number`` ties an answer to its question; ``body`` is JSON without a line end."""

    verb: Verb
    number: int = 0
    body: bytes = b"null"

    def encode(self) -> bytes:
        return b"%b %d %b\n" % (self.verb.encode(), self.number, self.body)


class Frames:
    """Cuts what arrives into frames. Both ends are this program, so what cannot be read is a bug:
    ValueError."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes. A long line costs no more the more parts it comes in."""
        head, end, rest = data.partition(b"\n")
        if not end:
            self._parts.append(data)
            return []
        *lines, last = [b"".join((*self._parts, head)), *rest.split(b"\n")]
        self._parts = [last] if last else []
        return [_frame(line) for line in lines]


def _frame(line: bytes) -> Frame:
    verb, number, body = line.split(b" ", 2)
    return Frame(Verb(verb.decode("ascii")), int(number), body)
