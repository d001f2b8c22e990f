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


def test_books_that_agree_have_no_breach() -> None:
    assert check(books()) == []


@pytest.mark.parametrize("outcome", [Outcome.UNANSWERED, Outcome.BROKEN])
def test_request_without_an_honest_end_is_lost(outcome: Outcome) -> None:
    failed = line(outcome="failed", error_type="internal")
    found = books(record(outcome=outcome, finish=None), lines=[failed])
    assert kinds(found) == ["lost"]


def test_reply_that_its_worker_finished_and_nobody_got_is_lost() -> None:
    waited = left_at(at=DONE + 5.0, detail="out of patience")
    assert kinds(books(waited, lines=[CANCELLED])) == ["lost"]


def test_reply_that_was_lost_with_its_worker_is_reported() -> None:
    """The worker was killed before it sent the reply, so a 502 is correct."""
    refused = record(outcome=Outcome.REFUSED, status=502, finish=None)
    failed = line(outcome="failed", error_type="internal", status=502)
    assert kinds(books(refused, lines=[failed])) == ["lost"]
    killed = [Life(0, 1, "sglang", 0.0, ended=DONE + 0.01)]
    assert check(books(refused, lines=[failed], lives=killed)) == []


def test_request_that_two_workers_were_given_is_duplicated() -> None:
    twice = [milestone("arrived"), milestone("client_gone", at=DONE), milestone("arrived", worker=1, at=DONE)]
    found = books(milestones=[*twice, milestone("finished", worker=1, at=DONE)])
    assert kinds(found) == ["duplicated"]


def test_request_with_two_outcomes_is_duplicated() -> None:
    assert "duplicated" in kinds(books(record(), record()))


def test_generation_that_goes_on_without_a_client_is_orphaned() -> None:
    found = books(left_at(), milestones=[milestone("arrived")], lines=[CANCELLED])
    assert kinds(found) == ["orphaned"]


def test_generation_that_is_ended_late_is_orphaned() -> None:
    late = [milestone("arrived"), milestone("aborted", at=DONE + 9.0)]
    assert kinds(books(left_at(), milestones=late, lines=[CANCELLED])) == ["orphaned"]
    soon = [milestone("arrived"), milestone("aborted", at=DONE + 0.2)]
    assert check(books(left_at(), milestones=soon, lines=[CANCELLED])) == []


def test_worker_that_was_frozen_has_its_time_from_the_thaw() -> None:
    late = [milestone("arrived"), milestone("client_gone", at=DONE + 9.0)]
    frozen = [Life(0, 1, "sglang", 0.0, stops=[(DONE - 1.0, DONE + 8.0)])]
    assert check(books(left_at(), milestones=late, lines=[CANCELLED], lives=frozen)) == []


def test_worker_that_was_killed_owes_nothing() -> None:
    killed = [Life(0, 1, "sglang", 0.0, ended=DONE + 0.1)]
    assert check(books(left_at(), milestones=[milestone("arrived")], lines=[CANCELLED], lives=killed)) == []


def test_complete_reply_without_a_worker_request_is_reported() -> None:
    assert kinds(books(milestones=[])) == ["dressed up"]


def test_complete_reply_that_its_worker_did_not_finish_is_reported() -> None:
    assert kinds(books(milestones=[milestone("arrived"), milestone("cut", at=DONE)])) == ["dressed up"]


def test_reply_of_another_request_is_dressed_up() -> None:
    failed = line(outcome="failed", error_type="internal")
    found = books(record(outcome=Outcome.WRONG, detail="tokens of another request"), lines=[failed])
    assert kinds(found) == ["dressed up"]


def test_reply_that_is_aborted_for_another_is_cut_short() -> None:
    assert kinds(books(record(finish="abort"))) == ["cut short"]
    assert check(books(record(finish="abort", abort_asked=SENT))) == []


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
