"""What everybody writes down during a run, as lines of JSON that survive a killed process.

Owns: the records and their spelling. Must never enter: a judgement of them.

Times are of the system's monotonic clock, which all processes share, in seconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar


class Outcome(StrEnum):
    """What became of a request, as its client saw it."""

    COMPLETE = "whole"  # a success that says it is finished, every token as it should be
    REFUSED = "refused"  # a status of 400 or over, with a well-formed body
    ERROR = "error"  # an error event in a stream that then ended well
    LEFT = "left"  # the client went away
    CLOSED = "closed"  # what was sent was no request; it was hung up on
    # None of these may ever happen.
    BROKEN = "broken"  # the connection ended in the middle of the reply, or instead of one
    WRONG = "wrong"  # a reply that is not this request's, or looks whole and is not
    UNANSWERED = "hung"  # neither a reply nor an end


#: Those that are an answer.
HONEST = frozenset({Outcome.COMPLETE, Outcome.REFUSED, Outcome.ERROR, Outcome.LEFT, Outcome.CLOSED})


@dataclass
class Asked:
    """One request of a client. ``counts``: its head was whole and for a generate route, so that the gateway
    has an exchange for it; a leaver's may have been cut off before, then it only ``may_count``."""

    marker: str
    what: str
    kind: str
    stream: bool = False
    sent: float = 0.0
    ended: float = 0.0
    outcome: Outcome = Outcome.UNANSWERED
    status: int | None = None
    finish: str | None = None
    detail: str = ""
    counts: bool = True
    may_count: bool = False
    #: An abort call named it, at this time.
    abort_asked: float | None = None
    tokens: int = 0

    def __post_init__(self) -> None:
        self.outcome = Outcome(self.outcome)  # a file knows the word only


@dataclass
class Seen:
    """Something happened to a generate request at a worker (gateway.sim.request_log.Milestone)."""

    worker: int
    life: int
    at: float
    mark: str
    marker: str
    id: str


@dataclass
class AbortSeen:
    """A worker's abort route was called."""

    worker: int
    life: int
    at: float
    ids: Sequence[str]


@dataclass
class Life:
    """One process of a worker; ``ended`` is None while it lives. ``stops`` are the times it was frozen."""

    worker: int
    life: int
    kind: str
    began: float
    ended: float | None = None
    stops: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class End:
    """What the gateway holds when nothing is asked of it any more; memory in bytes."""

    in_flight: Mapping[str, float]
    worker_sockets: int
    client_sockets: int
    memory_before: int
    memory_after: int
    exit_code: int | None = None


@dataclass
class Books:
    """All of a run. ``lines`` are the gateway's access log; ``counters`` its metrics, by name and labels."""

    asked: list[Asked]
    seen: list[Seen]
    aborts: list[AbortSeen]
    lives: list[Life]
    lines: list[dict[str, Any]]
    counters: Mapping[tuple[str, frozenset[tuple[str, str]]], float]
    end: End


Record = TypeVar("Record", Asked, Seen, AbortSeen)


class Book:
    """A file that one process appends to. Every record is written at once: the process may be killed."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, record: Asked | Seen | AbortSeen) -> None:
        os.write(self._fd, json.dumps({"is": type(record).__name__, **asdict(record)}).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def read(path: Path, kind: type[Record]) -> list[Record]:
    """The records of one kind in a book, in the order they were written."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        values = json.loads(line)
        if values.pop("is") == kind.__name__:
            found.append(kind(**values))
    return found
