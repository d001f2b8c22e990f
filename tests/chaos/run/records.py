"""The records of a run, as lines of JSON that survive a killed process.

Times are in seconds of the system's monotonic clock, which all processes share.
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
    """The outcome of a request, as its client saw it."""

    COMPLETE = "whole"  # a success with a terminal event and every expected token
    REFUSED = "refused"  # a status of 400 or over, with a well-formed body
    ERROR = "error"  # an error event in a stream that then ended properly
    LEFT = "left"  # the client disconnected
    CLOSED = "closed"  # the data was not a request, and the gateway closed the connection
    # None of these may ever happen.
    BROKEN = "broken"  # the connection ended in the middle of the reply, or instead of one
    WRONG = "wrong"  # a reply of another request, or one that looks complete and is not
    UNANSWERED = "hung"  # neither a reply nor an end


#: The outcomes that are allowed.
HONEST = frozenset({Outcome.COMPLETE, Outcome.REFUSED, Outcome.ERROR, Outcome.LEFT, Outcome.CLOSED})


@dataclass
class ClientRecord:
    """A client's request. ``counts``: its head was complete and for a generate route, so that the gateway has
    an exchange for it. The head of a client that disconnected may have been incomplete; then it only
    ``may_count``.
    """

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
    #: The time of an abort call with its id.
    abort_asked: float | None = None
    tokens: int = 0

    def __post_init__(self) -> None:
        self.outcome = Outcome(self.outcome)  # a file contains only the string


@dataclass
class WorkerMilestone:
    """A milestone of a generate request at a worker (gateway.sim.Milestone)."""

    worker: int
    life: int
    at: float
    mark: str
    marker: str
    id: str


@dataclass
class WorkerAbort:
    """A call of a worker's abort route."""

    worker: int
    life: int
    at: float
    ids: Sequence[str]


@dataclass
class Life:
    """A process of a worker; ``ended`` is None while it runs. ``stops`` are the times of its freezes."""

    worker: int
    life: int
    kind: str
    began: float
    ended: float | None = None
    stops: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class End:
    """The state of the gateway after the last request; memory in bytes."""

    in_flight: Mapping[str, float]
    worker_sockets: int
    client_sockets: int
    memory_before: int
    memory_after: int
    exit_code: int | None = None


@dataclass
class Books:
    """All records of a run. ``lines`` are the gateway's access log; ``counters`` its metrics, by name and
    labels.
    """

    records: list[ClientRecord]
    milestones: list[WorkerMilestone]
    aborts: list[WorkerAbort]
    lives: list[Life]
    lines: list[dict[str, Any]]
    counters: Mapping[tuple[str, frozenset[tuple[str, str]]], float]
    end: End


Record = TypeVar("Record", ClientRecord, WorkerMilestone, WorkerAbort)


class Book:
    """A file to which one process appends records, each at once, because the process may be killed."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, record: ClientRecord | WorkerMilestone | WorkerAbort) -> None:
        os.write(self._fd, json.dumps({"is": type(record).__name__, **asdict(record)}).encode() + b"\n")


def read(path: Path, kind: type[Record]) -> list[Record]:
    """Return the records of one kind in a file, in the order in which they were written."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        values = json.loads(line)
        if values.pop("is") == kind.__name__:
            found.append(kind(**values))
    return found
