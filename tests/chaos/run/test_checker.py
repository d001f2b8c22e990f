"""The checker finds every broken promise in records, and none in correct records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.run.checker import Breach, Case, check
from tests.chaos.run.records import Books, ClientRecord, End, Life, Outcome, WorkerAbort, WorkerMilestone

#: Times of a request that took a second.
SENT, DONE = 100.0, 101.0


def record(marker: str = "a", outcome: Outcome = Outcome.COMPLETE, **more: Any) -> ClientRecord:
    reported: dict[str, Any] = {"status": 200, "finish": "length", "sent": SENT, "ended": DONE, **more}
    return ClientRecord(marker, "stream", "sglang", outcome=outcome, **reported)


def milestone(
    mark: str, marker: str = "a", *, worker: int = 0, life: int = 1, at: float = SENT
) -> WorkerMilestone:
    return WorkerMilestone(worker, life, at, mark, marker, marker)


def line(marker: str | None = "a", **more: Any) -> dict[str, Any]:
    return {"session_id": marker, "outcome": "completed", "error_type": "", "status": 200, **more}


def books(*requests: ClientRecord, **more: Any) -> Books:
    """Return the records of one successful request with the given changes; the counters follow the log."""
    lines = more.pop("lines", [line()])
    success = sum(not each["error_type"] for each in lines)
    counts = {"success": success, "error": len(lines) - success}
    counters = {
        ("requests_total", frozenset({("status", status)})): float(count) for status, count in counts.items()
    }
    counters[("requests_started_total", frozenset())] = float(len(lines))
    reported: dict[str, Any] = {
        "milestones": [milestone("arrived"), milestone("finished", at=DONE)],
        "aborts": [],
        "lives": [Life(0, 1, "sglang", 0.0), Life(1, 1, "sglang", 0.0)],
        "lines": lines,
        "counters": counters,
        "end": End({"inflight_requests": 0.0}, 0, 0, 100, 105, 0),
        **more,
    }
    return Books(list(requests) or [record()], **reported)


def left_at(at: float = DONE, **more: Any) -> ClientRecord:
    return record(outcome=Outcome.LEFT, ended=at, may_count=True, finish=None, **more)


CANCELLED = line(outcome="cancelled", error_type="cancelled", status=499)


def kinds(found: Books) -> list[str]:
    return [breach.kind for breach in check(found)]


FAILED = line(outcome="failed", error_type="internal")
FAILED_502 = {**FAILED, "status": 502}
LOST = record(outcome=Outcome.REFUSED, status=502, finish=None)
ARRIVED = milestone("arrived")


def gone(at: float) -> list[WorkerMilestone]:
    return [ARRIVED, milestone("client_gone", at=at)]


def life(**more: Any) -> list[Life]:
    return [Life(0, 1, "sglang", 0.0, **more)]


TWICE = [*gone(DONE), milestone("arrived", worker=1, at=DONE), milestone("finished", worker=1, at=DONE)]
LEFT_AT = {"lines": [CANCELLED]}
BREACHES = {
    "no reply": ("lost", books(record(outcome=Outcome.UNANSWERED, finish=None), lines=[FAILED])),
    "broken reply": ("lost", books(record(outcome=Outcome.BROKEN, finish=None), lines=[FAILED])),
    "finished reply that nobody got": ("lost", books(left_at(DONE + 5, detail="out of patience"), **LEFT_AT)),
    "finished reply that became a 502": ("lost", books(LOST, lines=[FAILED_502])),
    "request at two workers": ("duplicated", books(milestones=TWICE)),
    "generation without a client": ("orphaned", books(left_at(), milestones=[ARRIVED], **LEFT_AT)),
    "generation that is ended late": ("orphaned", books(left_at(), milestones=gone(DONE + 9), **LEFT_AT)),
    "complete reply without a worker": ("dressed up", books(milestones=[])),
    "complete reply that its worker cut": (
        "dressed up",
        books(milestones=[ARRIVED, milestone("cut", at=DONE)]),
    ),
    "reply of another request": ("dressed up", books(record(outcome=Outcome.WRONG), lines=[FAILED])),
    "reply that another client aborted": ("cut short", books(record(finish="abort"))),
}
CORRECT = {
    "success": books(),
    "killed before it sent": books(LOST, lines=[FAILED_502], lives=life(ended=DONE + 0.01)),
    "ended soon": books(left_at(), milestones=gone(DONE + 0.2), **LEFT_AT),
    "frozen": books(
        left_at(), milestones=gone(DONE + 9), lives=life(stops=[(DONE - 1, DONE + 8)]), **LEFT_AT
    ),
    "killed": books(left_at(), milestones=[ARRIVED], lives=life(ended=DONE + 0.1), **LEFT_AT),
    "aborted by its client": books(record(finish="abort", abort_asked=SENT)),
}


@pytest.mark.parametrize("name", BREACHES)
def test_broken_promise_is_reported(name: str) -> None:
    kind, found = BREACHES[name]
    assert kinds(found) == [kind]


@pytest.mark.parametrize("name", CORRECT)
def test_correct_records_have_no_breach(name: str) -> None:
    assert check(CORRECT[name]) == []


def test_request_with_two_outcomes_is_duplicated() -> None:
    assert "duplicated" in kinds(books(record(), record()))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [line(), line()],
        [line(), line("nobody's")],
        [line(error_type="internal", outcome="failed")],
        [line(status=206)],
    ],
    ids=["none", "two", "a stranger's", "another end", "another status"],
)
def test_log_that_does_not_agree_is_a_miscount(lines: list[dict[str, Any]]) -> None:
    assert "miscounted" in kinds(books(lines=lines))


def test_metrics_that_do_not_add_up_are_a_miscount() -> None:
    found = books()
    counters = {**found.counters, ("requests_total", frozenset({("status", "success")})): 2.0}
    wrong = check(replace(found, counters=counters))
    assert {breach.kind for breach in wrong} == {"miscounted"}
    assert any("clients 1 to 1" in breach.text for breach in wrong)


def test_leaver_may_be_counted_or_not() -> None:
    """A client that disconnected before its head was complete sent no request."""
    leaver = record("b", Outcome.LEFT, may_count=True, finish=None)
    assert check(books(record(), leaver)) == []
    assert check(books(record(), leaver, lines=[line(), {**CANCELLED, "session_id": None}])) == []


@pytest.mark.parametrize(
    "end",
    [
        End({"inflight_requests": 1.0}, 0, 0, 100, 100, 0),
        End({}, 1, 0, 100, 100, 0),
        End({}, 0, 1, 100, 100, 0),
        End({}, 0, 0, 100, 111, 0),
        End({}, 0, 0, 100, 100, 1),
    ],
    ids=["request", "worker's socket", "client's socket", "memory", "exit code"],
)
def test_what_is_held_at_the_end_is_a_leak(end: End) -> None:
    assert kinds(books(end=end)) == ["leaked"]


def test_history_of_a_request_is_what_all_books_say_of_it() -> None:
    case = Case(books(aborts=[WorkerAbort(0, 1, DONE, ["a"]), WorkerAbort(0, 1, DONE, ["b"])]))
    heads = [text.split(":")[0] for text in case.history("a")]
    assert heads == ["client", "worker", "worker", "abort", "log"]
    assert check(case.books) == list[Breach]()
