"""What is known of marks, and the holds that follow."""

from __future__ import annotations

import random

from gateway.fleet.address import Address
from gateway.fleet.marks import HELD, REMOVED, Marks, parts_of, paused, waived
from gateway.fleet.record import WorkerRecord
from gateway.fleet.registry import Fleet
from gateway.fleet.states import Hold, WorkerEvent, WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.base import WorkerInfo
from gateway.routing.policy import LeastInFlight

URL = "http://w:1"
PAUSE = paused("memory", "kv_cache")


def made(record: WorkerRecord | None = None, least: str | None = None) -> tuple[Marks, Worker]:
    fleet = Fleet(LeastInFlight(random.Random(0)), 1.0, min_weight_version=least)
    worker = Worker(Address.parse(URL), record=record)
    fleet.add(worker)
    fleet.on(worker, WorkerEvent.SERVES)
    return Marks(fleet), worker


def test_parts_are_those_of_one_kind() -> None:
    words = {paused("memory", "a:b"), paused("generation", "generation"), HELD}
    assert parts_of(words, "memory") == {"a:b"}


def test_what_a_store_tells_holds_and_opens() -> None:
    marks, worker = made()
    marks.tell_all({URL: frozenset({HELD, PAUSE}), "http://other:1": frozenset({HELD})})
    assert set(worker.holds) == {Hold.OWNER, Hold.PAUSED}
    marks.tell(URL, frozenset({HELD}))
    assert set(worker.holds) == {Hold.OWNER}
    marks.tell_all({})
    assert worker.usable and not marks.all


def test_worker_that_joins_is_held_by_marks_that_were_there_before() -> None:
    marks, worker = made()
    marks.tell("http://late:1", frozenset({PAUSE}))
    late = Worker(Address.parse("http://late:1"))
    marks.enter(late)
    marks.enter(worker)
    assert Hold.PAUSED in late.holds and not worker.holds


def test_what_was_said_here_counts_until_the_store_has_it() -> None:
    """What it tells may be older: a worker that was resumed must not be held again by that."""
    marks, worker = made()
    marks.edit({URL: {PAUSE: True}})
    marks.edit({URL: {PAUSE: False}})
    marks.tell(URL, frozenset({PAUSE}))
    assert worker.usable
    marks.tell(URL, frozenset())
    marks.settle({URL: marks.edited(URL)})
    marks.tell(URL, frozenset({PAUSE}))
    assert worker.state is WorkerState.HELD


def test_what_was_said_since_a_write_outlives_it() -> None:
    marks, worker = made()
    marks.edit({URL: {PAUSE: True}})
    marks.edit({URL: {PAUSE: False}})
    written = {URL: marks.edited(URL)}
    marks.edit({URL: {PAUSE: True}})
    marks.edit({URL: {PAUSE: False}})
    marks.tell(URL, frozenset({PAUSE}))
    marks.settle(written)
    assert worker.usable, "though it says the same as what was written"


def test_mark_that_goes_leaves_a_record_its_hold() -> None:
    marks, worker = made(WorkerRecord(URL, held=True))
    marks.edit({URL: {HELD: True}})
    marks.edit({URL: {HELD: False}})
    assert Hold.OWNER in worker.holds


def test_another_process_at_a_url_is_held_but_not_paused() -> None:
    """And whoever is registered there after the worker was removed, is neither."""
    marks, worker = made()
    lifted: list[str] = []
    marks.lifted = lifted.append
    marks.tell(URL, frozenset({HELD, PAUSE, waived("1")}))
    marks.lift(URL, held=False)
    assert marks.of(URL) == {HELD}
    assert set(worker.holds) == {Hold.OWNER}
    marks.lift(URL, held=True)
    assert not marks.of(URL)
    marks.lift(URL, held=True)
    assert lifted == [URL, URL]


def test_opened_weights_are_opened_in_every_process_that_sees_them() -> None:
    """Others are not."""
    marks, worker = made(least="5")
    fleet = marks._fleet
    for version, held in (("3", False), ("4", True)):
        marks.edit({URL: {waived("3"): True}})
        fleet.describe(worker, {"echo": WorkerInfo("engine", "cap", True, weight_version=version)})
        assert (Hold.WEIGHTS in worker.holds) is held
    marks.edit({URL: {waived("4"): True}})
    assert not worker.holds


def test_removal_is_applied_and_no_matter_of_a_store() -> None:
    marks, _ = made()
    removed: list[str] = []
    marks.removed = removed.append
    marks.edit({URL: {REMOVED: True, HELD: True}})
    assert removed == [URL]
    assert marks.said(URL) == {HELD: True}
    marks.lift(URL, held=True)
    marks.settle({URL: marks.edited(URL)})
    assert marks.of(URL) == {REMOVED}
