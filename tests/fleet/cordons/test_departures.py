"""For how long the cordons of a worker that departed wait for it."""

from __future__ import annotations

import pytest

from gateway.fleet.cordons import departures as module
from gateway.fleet.cordons.departures import MAX_WAIT_SECONDS, Departures
from gateway.stores.record import INCARNATION, WorkerRecord

A, B = WorkerRecord("http://a:1"), WorkerRecord("http://b:1")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("seconds", "another"), [(MAX_WAIT_SECONDS, False), (MAX_WAIT_SECONDS + 1, True)])
def test_worker_that_is_back_within_an_hour_is_the_same(seconds: float, another: bool) -> None:
    departures = Departures(clock := Clock())
    departures.add(A.url)
    clock.now = seconds
    assert departures.is_another(A) is another
    clock.now *= 3
    assert not departures.is_another(A), "it had not departed again"


def test_departures_are_forgotten_after_an_hour_when_others_depart() -> None:
    departures = Departures(clock := Clock())
    assert departures.add(A.url) == []
    clock.now = MAX_WAIT_SECONDS + 1
    assert departures.add(B.url) == [A.url]
    assert A.url not in departures and B.url in departures


def test_first_departure_is_dropped_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WORKERS", 1)
    departures = Departures()
    assert departures.add(A.url) == [] and departures.add(B.url) == [A.url]


@pytest.mark.parametrize(
    ("before", "after", "another"),
    [("one", "two", True), ("one", "one", False), ("one", "", False), ("", "two", False)],
)
def test_another_incarnation_is_another_worker(before: str, after: str, another: bool) -> None:
    """Where its owner does not tell both, it may be the same."""
    departures = Departures()
    departures.add(A.url, before)
    assert departures.is_another(WorkerRecord(A.url, labels={INCARNATION: after})) is another
