"""The messages between the supervisor and the gateway processes.

Owns: the verbs, and their encoding: lines of ``VERB NUMBER BODY``, the body JSON in ASCII. Must never enter:
sockets, who sends what when.

The supervisor forwards bodies without parsing them, so its cost does not depend on what they contain.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Verb(StrEnum):
    # From a process, about itself.
    SERVING = "serving"  # it accepts connections now
    USABLE = "usable"  # body: whether it has a usable worker
    COUNTS = "counts"  # body: the snapshot of its counters
    RUNNING = "running"  # body: how many exchanges it still has; sent while it drains
    # A query of a process to all others. The supervisor sends it on to each of them under the same verb.
    METRICS = "metrics"  # body of the query and of an answer: the sender's snapshot of counters
    LOADS = "loads"
    ABORT = "abort"
    CORDONS = "cordons"  # body: updates of cordons, which all processes apply
    ALL_CORDONS = "all_cordons"  # answer: all cordons; asked by a process that has just started
    DESCRIBE = "describe"  # body: the URL of a worker that may serve something else now
    FINDINGS = "findings"  # body: what the guard against queries of death found; its answers are not used
    ALL_FINDINGS = "all_findings"  # answer: all that was found; asked by a process that has just started
    CREATED = "created"  # body: an id and the URL of the worker that created it; its answers are not used
    ANSWER = "answer"  # body: the answer of one process
    # From the supervisor.
    ANSWERS = "answers"  # body: a list of the others' answers, and how many are missing
    STATE = "state"  # body: the state of all processes together (GatewayState)
    END = "end"  # cut what still runs and exit


class Frame(NamedTuple):
    """A message. ``number`` ties an answer to its query; ``body`` is JSON without a line end."""

    verb: Verb
    number: int = 0
    body: bytes = b"null"

    def encode(self) -> bytes:
        return b"%b %d %b\n" % (self.verb.encode(), self.number, self.body)


class FrameParser:
    """An incremental parser of frames."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes. Raises ValueError for a line that is no frame.

        The cost of a long line does not grow with the number of parts it arrives in.
        """
        head, end, rest = data.partition(b"\n")
        if not end:
            self._parts.append(data)
            return []
        *lines, last = [b"".join((*self._parts, head)), *rest.split(b"\n")]
        self._parts = [last] if last else []
        return [_parse(line) for line in lines]


def _parse(line: bytes) -> Frame:
    verb, number, body = line.split(b" ", 2)
    return Frame(Verb(verb.decode("ascii")), int(number), body)
