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


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (books(record(outcome=Outcome.UNANSWERED, finish=None), lines=[FAILED]), "lost"),
        (books(record(outcome=Outcome.BROKEN, finish=None), lines=[FAILED]), "lost"),
        (books(left_at(at=DONE + 5.0, detail="out of patience"), lines=[CANCELLED]), "lost"),
        (books(LOST, lines=[FAILED_502]), "lost"),
        (
            books(
                milestones=[
                    ARRIVED,
                    milestone("client_gone", at=DONE),
                    milestone("arrived", worker=1, at=DONE),
                    milestone("finished", worker=1, at=DONE),
                ]
            ),
            "duplicated",
        ),
        (books(left_at(), milestones=[ARRIVED], lines=[CANCELLED]), "orphaned"),
        (
            books(left_at(), milestones=[ARRIVED, milestone("aborted", at=DONE + 9.0)], lines=[CANCELLED]),
            "orphaned",
        ),
        (books(milestones=[]), "dressed up"),
        (books(milestones=[ARRIVED, milestone("cut", at=DONE)]), "dressed up"),
        (books(record(outcome=Outcome.WRONG, detail="other tokens"), lines=[FAILED]), "dressed up"),
        (books(record(finish="abort")), "cut short"),
    ],
    ids=[
        "no reply",
        "broken reply",
        "finished reply that nobody got",
        "finished reply that became a 502",
        "request at two workers",
        "generation without a client",
        "generation that is ended late",
        "complete reply without a worker",
        "complete reply that its worker cut",
        "reply of another request",
        "reply that another client aborted",
    ],
)
def test_broken_promise_is_reported(found: Books, kind: str) -> None:
    assert kinds(found) == [kind]


@pytest.mark.parametrize(
    "found",
    [
        books(),
        books(LOST, lines=[FAILED_502], lives=[Life(0, 1, "sglang", 0.0, ended=DONE + 0.01)]),
        books(left_at(), milestones=[ARRIVED, milestone("aborted", at=DONE + 0.2)], lines=[CANCELLED]),
        books(
            left_at(),
            milestones=[ARRIVED, milestone("client_gone", at=DONE + 9.0)],
            lines=[CANCELLED],
            lives=[Life(0, 1, "sglang", 0.0, stops=[(DONE - 1.0, DONE + 8.0)])],
        ),
        books(
            left_at(),
            milestones=[ARRIVED],
            lines=[CANCELLED],
            lives=[Life(0, 1, "sglang", 0.0, ended=DONE + 0.1)],
        ),
        books(record(finish="abort", abort_asked=SENT)),
    ],
    ids=["success", "killed before it sent", "ended soon", "frozen", "killed", "aborted by its client"],
)
def test_correct_records_have_no_breach(found: Books) -> None:
    assert check(found) == []


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
