"""What the supervisor knows of the processes, and the questions that go from one to all others.

Owns: who serves, what each had counted by its last word, which questions are open. Must never enter: sockets,
signals, a clock of its own, what a question is about.

No counter falls because a process died: what it had counted is kept, and whatever a scrape has shown had
been told to the hub before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.prefork.frames import Frame, Verb

#: How long the others have for an answer, in seconds. A scrape has to be answered within 100 ms and can do
#: with what a process said before; an abort waits for workers, which have 5 s themselves. Marks hold up
#: whoever pauses a fleet, and a process that is stuck hears of them once it is no more.
PATIENCE: Mapping[Verb, float] = MappingProxyType(
    {Verb.METRICS: 0.08, Verb.LOADS: 0.08, Verb.ABORT: 5.5, Verb.MARKS: 0.3, Verb.ALL_MARKS: 0.3}
)

Send = Callable[[int, Frame], bool]
MergeCounts = Callable[[bytes | None, bytes], bytes]


@dataclass(slots=True)
class _Member:
    serving: bool = False
    #: It has a usable worker.
    usable: bool = False
    #: All it has counted, by its last word.
    counted: bytes | None = None
    #: Exchanges and control calls it still has, once it drains.
    open: int | None = None


@dataclass(slots=True, eq=False)
class _Question:
    verb: Verb
    asker: int
    number: int
    due: float
    waiting: set[int] = field(default_factory=set)
    #: Processes that could not be asked.
    unasked: int = 0
    answers: list[bytes] = field(default_factory=list)


class Hub:
    """Processes are known by their ids. Nothing here waits: ``send`` puts a frame on its way to one of them
    and says whether that could be done; ``merge_final_counts`` adds the final counts of a process that exited
    to those of the processes before it. Times are seconds of one monotonic clock.
    """

    def __init__(self, wanted: int, send: Send, merge_final_counts: MergeCounts) -> None:
        self._wanted = wanted
        self._send = send
        self._bury = merge_final_counts
        self._members: dict[int, _Member] = {}
        self._questions: dict[int, _Question] = {}
        self._asked = 0
        self._gone: bytes | None = None
        self._restarts = 0
        #: All processes have served at the same time once.
        self.settled = False
        self.draining = False

    @property
    def serving(self) -> int:
        """How many processes accept connections."""
        return sum(member.serving for member in self._members.values())

    @property
    def usable(self) -> bool:
        """Each of those that accept connections has a worker for them."""
        serving = [member for member in self._members.values() if member.serving]
        return bool(serving) and all(member.usable for member in serving)

    @property
    def idle(self) -> bool:
        """Draining, and no process has an exchange left."""
        return self.draining and all(member.open == 0 for member in self._members.values())

    @property
    def due(self) -> float | None:
        """When ``expire`` has something to do, unless an answer comes first."""
        return min((question.due for question in self._questions.values()), default=None)

    def joined(self, process: int, *, again: bool) -> None:
        """A process was started, in place of one that died if ``again``."""
        self._members[process] = _Member()
        self._restarts += again
        self._tell_state()

    def left(self, process: int) -> None:
        """It is gone, and all it said has been heard."""
        member = self._members.pop(process)
        if member.counted is not None:
            self._gone = self._bury(self._gone, member.counted)
        for number, question in tuple(self._questions.items()):
            if question.asker == process:
                del self._questions[number]
            else:
                self._answered(number, process, None)
        self._tell_state()

    def drain(self) -> None:
        """Have all refuse new exchanges and finish those that run."""
        self.draining = True
        self._tell_state()

    def end(self) -> None:
        """Have all end now."""
        for process in self._members:
            self._send(process, Frame(Verb.END))

    def heard(self, process: int, frame: Frame, now: float) -> None:
        """A process said ``frame``."""
        member = self._members[process]
        match frame.verb:
            case Verb.SERVING:
                member.serving = True
                self.settled = self.settled or self.serving == self._wanted
                self._tell_state()
            case Verb.USABLE:
                member.usable = frame.body == b"true"
                self._tell_state()
            case Verb.COUNTED:
                member.counted = frame.body
            case Verb.OPEN:
                member.open = int(frame.body)
            case Verb.ANSWER:
                self._answered(frame.number, process, frame.body)
            case _:
                self._ask_others(process, frame, now)

    def expire(self, now: float) -> None:
        """Do without the answers that are late."""
        for number, question in tuple(self._questions.items()):
            if question.due <= now:
                self._conclude(number)

    def _ask_others(self, asker: int, frame: Frame, now: float) -> None:
        verb, body = frame.verb, frame.body
        if verb is Verb.METRICS:
            self._members[asker].counted, body = body, b"null"
        self._asked += 1
        question = _Question(verb, asker, frame.number, now + PATIENCE[verb])
        self._questions[self._asked] = question
        asked = Frame(verb, self._asked, body)
        for process, member in self._members.items():
            if process == asker:
                continue
            if not member.serving:
                if verb is Verb.MARKS:
                    self._send(process, asked)  # it will serve by them, though it cannot answer yet
            elif self._send(process, asked):
                question.waiting.add(process)
            else:
                question.unasked += 1
        if not question.waiting:
            self._conclude(self._asked)

    def _answered(self, number: int, process: int, body: bytes | None) -> None:
        question = self._questions.get(number)
        if question is None:
            return  # it came too late
        if body is not None and process in question.waiting:
            if question.verb is Verb.METRICS:
                self._members[process].counted = body
            else:
                question.answers.append(body)
        question.waiting.discard(process)
        if not question.waiting:
            self._conclude(number)

    def _conclude(self, number: int) -> None:
        question = self._questions.pop(number)
        answers = self._counted(question.asker) if question.verb is Verb.METRICS else question.answers
        # Those who did not answer have to be told of, where it matters that all were asked.
        missing = len(question.waiting) + question.unasked
        body = b'{"answers":[%b],"missing":%d}' % (b",".join(answers), missing)
        self._send(question.asker, Frame(Verb.ANSWERS, question.number, body))

    def _counted(self, asker: int) -> Sequence[bytes]:
        """The last words of all but ``asker``, the dead included."""
        others = [member.counted for process, member in self._members.items() if process != asker]
        return [counted for counted in (*others, self._gone) if counted is not None]

    def _tell_state(self) -> None:
        state = {
            "wanted": self._wanted,
            "serving": self.serving,
            "settled": self.settled,
            "draining": self.draining,
            "restarts": self._restarts,
            "usable": self.usable,
        }
        for process in self._members:
            self._send(process, Frame(Verb.STATE, body=json.dumps(state).encode()))
