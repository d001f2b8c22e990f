"""The hub: what the supervisor knows of the processes, and the queries that one process asks all others.

Owns: which processes serve, the last counts of each, the open queries. Must never enter: sockets, signals,
a clock of its own, what a query is about.

No counter decreases because a process exits: its last counts are kept, and a scrape shows only counts that
the hub already has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.prefork.frames import Frame, Verb

#: How long the others have for an answer, in seconds. A scrape has to be answered within 100 ms and can use
#: the last counts of a process instead. Aborts and descriptions wait for workers, whose own limit is 5 s.
#: Cordons delay the call that pauses a fleet; a process that is stuck gets them when it runs again. What a
#: new process asks for delays only that process, which might never know it otherwise.
ANSWER_TIMEOUTS: Mapping[Verb, float] = MappingProxyType(
    {
        Verb.METRICS: 0.08,
        Verb.LOADS: 0.08,
        Verb.ABORT: 5.5,
        Verb.DESCRIBE: 5.5,
        Verb.CORDONS: 0.3,
        Verb.ALL_CORDONS: 5.0,
        Verb.FINDINGS: 0.3,
        Verb.CREATED: 0.3,
        Verb.ALL_FINDINGS: 5.0,
    }
)

#: What every process has to know, also one that does not serve yet.
_UPDATES = (Verb.CORDONS, Verb.FINDINGS)

#: Sends a frame to a process without waiting; returns False if that is not possible.
Send = Callable[[int, Frame], bool]
#: Adds the final counts of a process to those of the processes that exited before it (None: there are none).
MergeCounts = Callable[[bytes | None, bytes], bytes]


@dataclass(slots=True)
class _ProcessState:
    serving: bool = False
    #: It has a usable worker.
    usable: bool = False
    #: Its last counts.
    counts: bytes | None = None
    #: Exchanges and control calls that it still runs, reported while it drains.
    running: int | None = None


@dataclass(slots=True, eq=False)
class _Query:
    verb: Verb
    asker: int
    number: int
    deadline: float
    pending: set[int] = field(default_factory=set)
    #: Number of processes to which the query could not be sent.
    unsent: int = 0
    answers: list[bytes] = field(default_factory=list)


class Hub:
    """The state of each process, by its id. No method waits. Times are seconds of one monotonic clock."""

    def __init__(self, wanted: int, send: Send, merge_final_counts: MergeCounts) -> None:
        self._wanted = wanted
        self._send = send
        self._merge_final_counts = merge_final_counts
        self._processes: dict[int, _ProcessState] = {}
        self._queries: dict[int, _Query] = {}
        self._last_number = 0
        #: The sum of the final counts of all processes that exited.
        self._final_counts: bytes | None = None
        self._restarts = 0
        #: All processes have served at the same time at least once.
        self.settled = False
        self.draining = False

    @property
    def serving(self) -> int:
        """The number of processes that accept connections."""
        return sum(state.serving for state in self._processes.values())

    @property
    def usable(self) -> bool:
        """True if at least one process accepts connections and all that do have a usable worker."""
        serving = [state for state in self._processes.values() if state.serving]
        return bool(serving) and all(state.usable for state in serving)

    @property
    def idle(self) -> bool:
        """True if the gateway drains and no process has an exchange left."""
        return self.draining and all(state.running == 0 for state in self._processes.values())

    @property
    def next_deadline(self) -> float | None:
        """The time at which ``expire`` has to be called; None if no query is open."""
        return min((query.deadline for query in self._queries.values()), default=None)

    def process_started(self, process: int, *, replacement: bool) -> None:
        """Add a process, which replaces one that exited if ``replacement``."""
        self._processes[process] = _ProcessState()
        self._restarts += replacement
        self._broadcast_state()

    def process_ended(self, process: int) -> None:
        """Remove a process whose last frame has been handled; keep its counts."""
        state = self._processes.pop(process)
        if state.counts is not None:
            self._final_counts = self._merge_final_counts(self._final_counts, state.counts)
        for number, query in tuple(self._queries.items()):
            if query.asker == process:
                del self._queries[number]
            else:
                self._on_answer(number, process, None)
        self._broadcast_state()

    def drain(self) -> None:
        """Make all processes refuse new exchanges and finish those that run."""
        self.draining = True
        self._broadcast_state()

    def end(self) -> None:
        """Make all processes end now."""
        for process in self._processes:
            self._send(process, Frame(Verb.END))

    def on_frame(self, process: int, frame: Frame, now: float) -> None:
        """Handle a frame that ``process`` sent."""
        state = self._processes[process]
        match frame.verb:
            case Verb.SERVING:
                state.serving = True
                self.settled = self.settled or self.serving == self._wanted
                self._broadcast_state()
            case Verb.USABLE:
                state.usable = frame.body == b"true"
                self._broadcast_state()
            case Verb.COUNTS:
                state.counts = frame.body
            case Verb.RUNNING:
                state.running = int(frame.body)
            case Verb.ANSWER:
                self._on_answer(frame.number, process, frame.body)
            case _:
                self._ask_others(process, frame, now)

    def expire(self, now: float) -> None:
        """Conclude the queries whose deadline has passed, without the missing answers."""
        for number, query in tuple(self._queries.items()):
            if query.deadline <= now:
                self._conclude(number)

    def _ask_others(self, asker: int, frame: Frame, now: float) -> None:
        verb, body = frame.verb, frame.body
        if verb is Verb.METRICS:
            self._processes[asker].counts, body = body, b"null"
        self._last_number += 1
        query = _Query(verb, asker, frame.number, now + ANSWER_TIMEOUTS[verb])
        self._queries[self._last_number] = query
        forwarded = Frame(verb, self._last_number, body)
        for process, state in self._processes.items():
            if process == asker:
                continue
            if not state.serving:
                if verb in _UPDATES:
                    # It has to know them when it begins to serve, but cannot answer yet.
                    self._send(process, forwarded)
            elif self._send(process, forwarded):
                query.pending.add(process)
            else:
                query.unsent += 1
        if not query.pending:
            self._conclude(self._last_number)

    def _on_answer(self, number: int, process: int, body: bytes | None) -> None:
        """Add an answer to a query; a ``body`` of None means that ``process`` will not answer."""
        query = self._queries.get(number)
        if query is None:
            return  # the answer is late: the query was concluded without it
        if body is not None and process in query.pending:
            if query.verb is Verb.METRICS:
                self._processes[process].counts = body
            else:
                query.answers.append(body)
        query.pending.discard(process)
        if not query.pending:
            self._conclude(number)

    def _conclude(self, number: int) -> None:
        query = self._queries.pop(number)
        answers = query.answers
        if query.verb is Verb.METRICS:
            counts = [state.counts for pid, state in self._processes.items() if pid != query.asker]
            answers = [each for each in (*counts, self._final_counts) if each is not None]
        missing = len(query.pending) + query.unsent
        body = b'{"answers":[%b],"missing":%d}' % (b",".join(answers), missing)
        self._send(query.asker, Frame(Verb.ANSWERS, query.number, body))

    def _broadcast_state(self) -> None:
        state = {
            "wanted": self._wanted,
            "serving": self.serving,
            "settled": self.settled,
            "draining": self.draining,
            "restarts": self._restarts,
            "usable": self.usable,
        }
        for process in self._processes:
            self._send(process, Frame(Verb.STATE, body=json.dumps(state).encode()))
