"""What is known of marks, and the holds that follow."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations, product

import pytest

from gateway.fleet.cordons import cordons as module
from gateway.fleet.cordons.cordons import HELD, REMOVED, Cordons, microseconds, parts_of, paused, waived
from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource, WorkerEvent, WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.routing.policy import LeastInFlight
from gateway.stores.file.cordons import StoredCordons
from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Updates, Versioned, undated
from gateway.upstream.address import Address

URL, OTHER = "http://w:1", "http://other:1"
PAUSE = paused("memory", "kv_cache")


def made(
    record: WorkerRecord | None = None, least: str | None = None, clock: Callable[[], int] = microseconds
) -> tuple[Cordons, Worker]:
    fleet = Fleet(LeastInFlight(random.Random(0)), 1.0, min_weight_version=least)
    worker = Worker(Address.parse(URL), record=record)
    fleet.add(worker)
    fleet.on(worker, WorkerEvent.SERVES)
    return Cordons(fleet, clock), worker


def said(at: int, there: bool, who: str = "somebody") -> Updates:
    return {URL: {PAUSE: Versioned(at, who, there)}}


def test_parts_are_those_of_one_kind() -> None:
    words = {paused("memory", "a:b"), paused("generation", "generation"), HELD}
    assert parts_of(words, "memory") == {"a:b"}


def test_what_a_store_tells_holds_and_opens() -> None:
    marks, worker = made()
    there = Versioned(7, "a", True)
    marks.tell_all({URL: {HELD: there, PAUSE: there}, OTHER: {HELD: there}})
    assert set(worker.cordons) == {CordonSource.OWNER, CordonSource.PAUSED}
    marks.tell(URL, {PAUSE: Versioned(8, "a", False)})
    assert set(worker.cordons) == {CordonSource.OWNER}
    marks.tell(URL, {HELD: Versioned(8, "b", False)})
    assert worker.usable and marks.of(OTHER) == {HELD}


def test_worker_that_joins_is_held_by_marks_that_were_there_before() -> None:
    marks, worker = made()
    marks.tell("http://late:1", {PAUSE: Versioned(7, "a", True)})
    late = Worker(Address.parse("http://late:1"))
    marks.enter(late)
    marks.enter(worker)
    assert CordonSource.PAUSED in late.cordons and not worker.cordons


def test_what_was_said_before_is_no_news_however_late_it_comes() -> None:
    """A worker that was resumed is not held again by it."""
    marks, worker = made()
    pause = marks.say({URL: {PAUSE: True}})
    marks.say({URL: {PAUSE: False}})
    assert not marks.hear(pause)
    marks.tell(URL, pause[URL])
    marks.tell_all(pause)
    assert worker.usable and not marks.of(URL)


def test_what_is_said_is_later_than_all_that_was_heard() -> None:
    """Whatever the clock of whom it was heard from."""
    marks, _ = made(clock=lambda: 5)
    ahead = marks.hear(said(1 << 60, there=True))
    assert ahead == said(1 << 60, there=True)
    marks.say({URL: {PAUSE: False}})
    assert not marks.of(URL) and not marks.hear(ahead)
    first, second = marks.say({URL: {PAUSE: True}}), marks.say({URL: {PAUSE: False}})
    assert first[URL][PAUSE] < second[URL][PAUSE]


def test_restart_says_later_things_than_what_was_said_before_it() -> None:
    """So that a resume counts that was said while the store was away."""
    before, _ = made()
    stored = before.say({URL: {PAUSE: True}})
    after, worker = made()
    after.say({URL: {PAUSE: False}})
    after.tell_all(stored)
    assert worker.usable


def test_change_that_is_not_dated_counts_as_made_now() -> None:
    """Somebody edits the file, or is a gateway that knows no order."""
    marks, worker = made()
    marks.say({URL: {PAUSE: True}})
    marks.tell(URL, {PAUSE: undated(present=True)})
    marks.tell(URL, {PAUSE: undated(present=False)})
    assert worker.usable
    marks.tell(URL, {PAUSE: undated(present=True)})
    assert not worker.usable
    marks.say({URL: {PAUSE: False}})
    assert worker.usable


def test_mark_that_is_not_dated_is_older_than_anything_when_a_store_is_read_first() -> None:
    marks, worker = made()
    marks.tell_all({URL: {PAUSE: undated(present=True)}})
    assert not worker.usable
    marks.say({URL: {PAUSE: False}})
    marks.tell_all({URL: {PAUSE: undated(present=True)}})
    assert worker.usable


@cache
def in_order(steps: Sequence[str], *before: tuple[str, str]) -> Sequence[Sequence[str]]:
    """All orders of ``steps`` in which each first one of ``before`` comes before the second."""
    return [
        order
        for order in permutations(steps)
        if all(order.index(first) < order.index(second) for first, second in before)
    ]


@pytest.mark.parametrize(("here", "there"), [(True, False), (False, True)])
@pytest.mark.parametrize("clocks", [(7, 7), (8, 7)])
def test_two_edits_in_two_processes_end_alike_in_both_in_every_order(
    here: bool, there: bool, clocks: tuple[int, int]
) -> None:
    """Each says one, hears the other's, and is told all that the other knew at some moment, before that edit
    or after it. Whoever had heard of the other's when it said its own has the last word."""
    steps = ("say0", "say1", "hear0", "hear1", "ask0", "ask1", "learn0", "learn1")
    order_of = (("say0", "hear1"), ("say1", "hear0"), ("ask0", "learn0"), ("ask1", "learn1"))
    for order in in_order(steps, *order_of):
        processes = [made(clock=lambda at=at: at)[0] for at in clocks]  # type: ignore[misc]
        edits: list[Updates] = [{}, {}]
        answers: list[Updates] = [{}, {}]
        for step in order:
            which = int(step[-1])
            match step[:-1]:
                case "say":
                    edits[which] = processes[which].say({URL: {PAUSE: (here, there)[which]}})
                case "hear":
                    processes[which].hear(edits[1 - which])
                case "ask":
                    answers[which] = processes[1 - which].all
                case "learn":
                    processes[which].hear(answers[which])
        ends = {process.of(URL) == {PAUSE} for process in processes}
        assert len(ends) == 1, order
        for last, heard in (("say0", "hear0"), ("say1", "hear1")):
            if order.index(heard) < order.index(last):
                assert ends == {(here, there)[int(last[-1])]}, order


@pytest.mark.parametrize(("here", "there"), list(product([True, False], repeat=2)))
def test_two_edits_in_two_gateways_end_alike_in_both_and_the_store_in_every_order(
    here: bool, there: bool
) -> None:
    """Each is written some time after it was said; what the store has is told now and then, and at last."""
    steps = ("say0", "say1", "write0", "write1", "tell0", "tell1")
    for order in in_order(steps, ("say0", "write0"), ("say1", "write1")):
        gateways, store = [made(clock=lambda: 7)[0] for _ in range(2)], StoredCordons({})
        edits: list[Updates] = [{}, {}]
        for step in (*order, "tell0", "tell1"):
            which = int(step[-1])
            match step[:-1]:
                case "say":
                    edits[which] = gateways[which].say({URL: {PAUSE: (here, there)[which]}})
                case "write":
                    store.update(edits[which])
                case "tell":
                    gateways[which].tell(URL, StoredCordons(store.members).known.get(URL, {}))
        stored = {word for word, each in store.known[URL].items() if each.present}
        assert gateways[0].of(URL) == gateways[1].of(URL) == stored, order


def test_lifted_marks_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten."""
    monkeypatch.setattr(module, "LIFTED", 10)
    monkeypatch.setattr(module, "LIFTED_EACH", 2)
    marks, _ = made()
    for number in range(100):
        marks.say({f"http://{number}:1": {HELD: True}})
        marks.say({f"http://{number}:1": {HELD: False}})
    assert list(marks.all) == [f"http://{number}:1" for number in range(88, 100)]


def test_mark_that_goes_leaves_a_record_its_hold() -> None:
    marks, worker = made(WorkerRecord(URL, held=True))
    marks.say({URL: {HELD: True}})
    marks.say({URL: {HELD: False}})
    assert CordonSource.OWNER in worker.cordons


def test_another_process_at_a_url_is_held_but_not_paused() -> None:
    """And whoever is registered there after the worker was removed, is neither."""
    marks, worker = made()
    lifted: list[Updates] = []
    marks.lifted = lifted.append
    marks.say({URL: {HELD: True, PAUSE: True, waived("1"): True}})
    marks.lift(URL, held=False)
    assert marks.of(URL) == {HELD}
    assert set(worker.cordons) == {CordonSource.OWNER}
    marks.lift(URL, held=True)
    assert not marks.of(URL)
    marks.lift(URL, held=True)
    assert [set(edits[URL]) for edits in lifted] == [{PAUSE, waived("1")}, {HELD}]


def test_opened_weights_are_opened_in_every_process_that_sees_them() -> None:
    """Others are not."""
    marks, worker = made(least="5")
    fleet = marks._fleet
    for version, held in (("3", False), ("4", True)):
        marks.say({URL: {waived("3"): True}})
        fleet.describe(worker, {"echo": WorkerInfo("engine", "cap", True, weight_version=version)})
        assert (CordonSource.WEIGHTS in worker.cordons) is held
    marks.say({URL: {waived("4"): True}})
    assert not worker.cordons


def test_removal_is_applied_and_outlives_what_else_is_lifted() -> None:
    marks, worker = made()
    removed: list[str] = []
    marks.removed = removed.append
    marks.say({URL: {REMOVED: True, HELD: True}})
    assert removed == [URL] and worker.state is WorkerState.CORDONED
    marks.lift(URL, held=True)
    assert marks.of(URL) == {REMOVED}


def test_mark_of_nobody_is_told_of_when_another_process_says_it() -> None:
    """Not when a store has it, which may be for another gateway, nor when it is a removal."""
    marks, _ = made()
    homeless: list[str] = []
    marks.homeless = homeless.append
    there = Versioned(7, "a", True)
    marks.hear({URL: {HELD: there}, OTHER: {REMOVED: there}})
    marks.tell("http://third:1", {HELD: there})
    assert not homeless
    marks.hear({OTHER: {HELD: there}})
    assert homeless == [OTHER]
