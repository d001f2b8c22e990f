"""The checker, which compares the records of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.chaos.run import choices
from tests.chaos.run.records import HONEST, Books, ClientRecord, Life, Outcome, WorkerMilestone
from tests.chaos.run.watch import total

#: Seconds within which a running worker must notice a client's disconnect. The promise is 0.25 s, and most
#: notice it within a few milliseconds (the table shows it); a machine with too few processors may keep all
#: processes from running for seconds.
NOTICE = 5.0
#: Seconds after which a reply that the worker has finished must have arrived.
DELIVERY = 4.0
#: Seconds before its end by SIGKILL in which a worker's output may be lost.
LAST_WORDS = 0.5
#: The allowed ratio of the gateway's memory after the run to that before.
MEMORY = 1.10

_ENDS = ("finished", "aborted", "client_gone", "cut")


@dataclass(frozen=True)
class Breach:
    """A broken promise. ``kind`` is its name in the table, ``marker`` identifies the request."""

    kind: str
    marker: str
    text: str


class Case:
    def __init__(self, books: Books) -> None:
        self.books = books
        self.records = {record.marker: record for record in books.records}
        self.milestones: dict[str, list[WorkerMilestone]] = defaultdict(list)
        for milestone in books.milestones:
            self.milestones[milestone.marker].append(milestone)
        self._lives = {(life.worker, life.life): life for life in books.lives}

    def reached(self, marker: str, *marks: str) -> list[WorkerMilestone]:
        """Return the milestones of a request that are among ``marks``."""
        return [milestone for milestone in self.milestones.get(marker, ()) if milestone.mark in marks]

    def life(self, milestone: WorkerMilestone) -> Life:
        return self._lives[milestone.worker, milestone.life]

    def end_of(self, arrival: WorkerMilestone) -> float | None:
        """Return the time at which the worker ended a request, None if it never did."""
        ends = self.reached(arrival.marker, *_ENDS)
        return min((end.at for end in ends if self.life(end) is self.life(arrival)), default=None)

    def history(self, marker: str) -> list[str]:
        """Return all records of a request, a line each."""
        milestones = self.milestones.get(marker, ())
        ids = {milestone.id for milestone in milestones}
        return [
            *(f"client: {self.records[name]}" for name in [marker] if name in self.records),
            *(f"worker: {milestone}" for milestone in milestones),
            *(f"abort:  {call}" for call in self.books.aborts if ids & set(call.ids)),
            *(f"log:    {line}" for line in self.books.lines if line["session_id"] == marker),
        ]


def one_outcome(case: Case) -> Iterator[Breach]:
    """Check that every request has one outcome, and an allowed one."""
    for marker, count in Counter(record.marker for record in case.books.records).items():
        if count > 1:
            yield Breach("duplicated", marker, f"{count} outcomes at its client")
    for record in case.books.records:
        if record.outcome not in HONEST:
            kind = "dressed up" if record.outcome is Outcome.WRONG else "lost"
            yield Breach(kind, record.marker, f"{record.outcome}: {record.detail}")


def one_generation(case: Case) -> Iterator[Breach]:
    """Check that no request is dispatched to two workers, or twice to one."""
    for marker in case.milestones:
        if (count := len(case.reached(marker, "arrived"))) > 1:
            yield Breach("duplicated", marker, f"arrived {count} times at workers")


def complete_replies_were_generated(case: Case) -> Iterator[Breach]:
    """Check that each reply which a client got as complete was finished by a worker, and is aborted only if
    its client requested that.
    """
    for record in case.books.records:
        if record.outcome is not Outcome.COMPLETE:
            continue
        arrivals = case.reached(record.marker, "arrived")
        if not arrivals:
            yield Breach("dressed up", record.marker, "a complete reply without a request to a worker")
        elif not case.reached(record.marker, "finished") and not _killed(
            case.life(arrivals[0]), record.ended, LAST_WORDS
        ):
            yield Breach("dressed up", record.marker, "a complete reply that no worker finished")
        if record.finish == "abort" and record.abort_asked is None:
            yield Breach("cut short", record.marker, "aborted without a request for it")


def finished_replies_arrive(case: Case) -> Iterator[Breach]:
    """Check that each reply which a worker finished reaches its client, unless that disconnected before."""
    for record in case.books.records:
        ends = case.reached(record.marker, "finished")
        if not ends or _killed(case.life(ends[0]), ends[0].at, DELIVERY):
            continue
        waited = record.ended - ends[0].at
        if record.outcome is Outcome.LEFT and record.detail == "out of patience" and waited > DELIVERY:
            text = f"finished by its worker {waited:.1f} s before its client left"
            yield Breach("lost", record.marker, text)
        if record.status in (502, 504):
            yield Breach("lost", record.marker, f"finished by its worker, reported as {record.status}")


def disconnects_end_requests(case: Case) -> Iterator[Breach]:
    """Check that a running worker soon ends a request whose client has disconnected."""
    for marker in case.milestones:
        record = case.records.get(marker)
        for arrival in case.reached(marker, "arrived"):
            life, end = case.life(arrival), case.end_of(arrival)
            left_at = max(arrival.at, record.ended if record is not None else 0.0)
            due = _thawed(life, left_at) + NOTICE
            if end is None and life.ended is None:
                yield Breach("orphaned", marker, "its worker never ended it")
            elif (end is None or end > due) and (life.ended is None or life.ended > due):
                after = "never" if end is None else f"{end - left_at:.2f} s after its client had gone"
                yield Breach("orphaned", marker, f"ended by its worker {after}")


def log_has_a_line_for_each(case: Case) -> Iterator[Breach]:
    """Check that each exchange has one access log line, which agrees with the client's record."""
    lines = defaultdict(list)
    for line in case.books.lines:
        lines[line["session_id"]].append(line)
    for record in case.books.records:
        found = lines.pop(record.marker, [])
        if len(found) > 1 or (record.counts and not record.may_count and not found):
            yield Breach("miscounted", record.marker, f"{len(found)} lines in the access log")
        for line in found:
            if (wrong := _disagrees(record, line)) is not None:
                yield Breach("miscounted", record.marker, wrong)
    nameless = len(lines.pop(None, []))
    uncertain = sum(record.may_count for record in case.books.records)
    if nameless > uncertain or lines:
        yield Breach("miscounted", "", f"{nameless + len(lines)} lines without a request of a client")


def metrics_add_up(case: Case) -> Iterator[Breach]:
    """Check that the counters agree with the log and with the clients' records."""
    books = case.books
    sure = Counter({"success": 0, "error": 0})
    perhaps = 0
    for record in books.records:
        if record.outcome is Outcome.LEFT or record.what == choices.GARBAGE:
            perhaps += 1
        elif record.counts:
            sure["success" if record.outcome is Outcome.COMPLETE else "error"] += 1
    logged = Counter("error" if line["error_type"] else "success" for line in books.lines)
    for status, least in sure.items():
        counted = total(books.counters, "requests_total", status=status)
        name = f"requests_total {status} {counted:.0f}"
        if counted != logged[status]:
            yield Breach("miscounted", "", f"{name}, {logged[status]} logged")
        if not least <= counted <= least + perhaps:
            yield Breach("miscounted", "", f"{name}, clients {least} to {least + perhaps}")
    started = total(books.counters, "requests_started_total")
    if started != len(books.lines):
        yield Breach("miscounted", "", f"requests_started_total {started:.0f}, {len(books.lines)} logged")


def nothing_is_left(case: Case) -> Iterator[Breach]:
    """Check that no request, connection or memory is held at the end."""
    end = case.books.end
    held = {
        **end.in_flight,
        "sockets to workers": end.worker_sockets,
        "sockets of clients": end.client_sockets,
        "growth of memory in %": 100 * max(0.0, end.memory_after / end.memory_before - MEMORY),
        "exit code": end.exit_code,
    }
    for name, value in held.items():
        if value:
            yield Breach("leaked", "", f"{name}: {value:.0f} at the end")


CHECKS: tuple[Callable[[Case], Iterator[Breach]], ...] = (
    one_outcome,
    one_generation,
    complete_replies_were_generated,
    finished_replies_arrive,
    disconnects_end_requests,
    log_has_a_line_for_each,
    metrics_add_up,
    nothing_is_left,
)
#: Every kind of broken promise, for the table.
KINDS = ("lost", "duplicated", "orphaned", "dressed up", "cut short", "miscounted", "leaked")


def check(books: Books) -> list[Breach]:
    case = Case(books)
    return [breach for each in CHECKS for breach in each(case)]


def notices(case: Case) -> Iterator[float]:
    """Return for each disconnect whose worker was neither killed nor frozen the seconds until the worker
    noticed it.
    """
    for record in case.books.records:
        for arrival in case.reached(record.marker, "arrived") if record.outcome is Outcome.LEFT else ():
            life, ended = case.life(arrival), case.end_of(arrival)
            left_at = max(arrival.at, record.ended)
            alive = life.ended is None and _thawed(life, left_at) == left_at
            if ended is not None and ended >= left_at and alive:
                yield ended - left_at


def _killed(life: Life, at: float, within: float) -> bool:
    """Return True if the worker was killed before ``at`` or so soon after it that its output may be lost."""
    return life.ended is not None and life.ended < at + within


def _thawed(life: Life, at: float) -> float:
    """Return ``at``, or the time at which the worker was resumed if it was frozen then or soon after."""
    for began, ended in life.stops:
        if began - NOTICE <= at <= ended:
            at = max(at, ended)
    return at


def _disagrees(record: ClientRecord, line: dict[str, object]) -> str | None:
    if record.outcome is Outcome.LEFT:
        return None
    if (record.outcome is not Outcome.COMPLETE) != bool(line["error_type"]):
        return f"{record.outcome} at its client, {line['outcome']} {line['error_type']!r} in the log"
    if record.status is not None and line["status"] != record.status:
        return f"status {record.status} at its client, {line['status']} in the log"
    return None
