"""The last-writer-wins map of cordons, and the cordons of the fleet that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations, product

import pytest

from gateway.fleet.cordons import cordons as module
from gateway.fleet.cordons.cordons import (
    BY_OWNER,
    Cordons,
    microseconds,
    paused,
    paused_parts,
    weights_allowed,
)
from gateway.fleet.states import CordonSource
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.stores.file.cordons import StoredCordons
from gateway.stores.record import WorkerRecord
from gateway.stores.versioned import Updates, Versioned, undated
from gateway.upstream.address import Address
from tests.fleet.support import fleet_of

URL, OTHER = "http://w:1", "http://other:1"
PAUSE = paused("memory", "kv_cache")
ADD, REMOVE = {URL: {PAUSE: True}}, {URL: {PAUSE: False}}


def cordons_of(
    record: WorkerRecord | None = None, least: str | None = None, clock: Callable[[], int] = microseconds
) -> tuple[Cordons, Worker]:
    fleet = fleet_of(URL, record=record, min_weight_version=least)
    return Cordons(fleet, clock), fleet.workers[0]


def test_parts_are_those_of_one_kind() -> None:
    reasons = {paused("memory", "a:b"), paused("generation", "generation"), BY_OWNER}
    assert paused_parts(reasons, "memory") == {"a:b"}


def test_entries_of_a_store_cordon_and_uncordon() -> None:
    cordons, worker = cordons_of()
    present = Versioned(7, "a", True)
    cordons.merge_store({URL: {BY_OWNER: present, PAUSE: present}, OTHER: {BY_OWNER: present}})
    assert cordons.loaded.is_set()
    assert set(worker.cordons) == {CordonSource.OWNER, CordonSource.PAUSED}
    cordons.merge_store_change(URL, {PAUSE: Versioned(8, "a", False)})
    assert set(worker.cordons) == {CordonSource.OWNER}
    cordons.merge_store_change(URL, {BY_OWNER: Versioned(8, "b", False)})
    assert worker.usable and cordons.of(OTHER) == {BY_OWNER}


def test_worker_that_joins_is_cordoned_by_entries_that_are_older_than_it() -> None:
    cordons, worker = cordons_of()
    cordons.merge_store_change("http://late:1", {PAUSE: Versioned(7, "a", True)})
    late = Worker(Address.parse("http://late:1"))
    for each in (late, worker):
        cordons.apply_to(each)
    assert CordonSource.PAUSED in late.cordons and not worker.cordons


def test_write_is_later_than_every_entry_that_was_merged_whatever_the_clocks_say() -> None:
    cordons, _ = cordons_of(clock=lambda: 5)
    ahead = {URL: {PAUSE: Versioned(1 << 60, "somebody", True)}}
    assert cordons.merge(ahead) == ahead
    cordons.write(REMOVE)
    assert not cordons.of(URL) and not cordons.merge(ahead)
    assert cordons.write(ADD)[URL][PAUSE] < cordons.write(REMOVE)[URL][PAUSE]


def test_write_after_a_restart_is_later_than_what_the_store_kept_from_before() -> None:
    """So a resume that was written while the store was away counts."""
    stored = cordons_of()[0].write(ADD)
    after, worker = cordons_of()
    after.write(REMOVE)
    after.merge_store(stored)
    assert worker.usable


def test_undated_change_in_a_store_counts_as_made_now() -> None:
    """Somebody edits the file, or a gateway writes it that knows no order."""
    cordons, worker = cordons_of()
    cordons.write(ADD)
    cordons.merge_store_change(URL, {PAUSE: undated(present=True)})
    cordons.merge_store_change(URL, {PAUSE: undated(present=False)})
    assert worker.usable
    cordons.merge_store_change(URL, {PAUSE: undated(present=True)})
    assert not worker.usable
    cordons.write(REMOVE)
    assert worker.usable


def test_undated_entry_of_a_store_that_is_read_first_is_older_than_any_other() -> None:
    cordons, worker = cordons_of()
    cordons.merge_store({URL: {PAUSE: undated(present=True)}})
    assert not worker.usable
    cordons.write(REMOVE)
    cordons.merge_store({URL: {PAUSE: undated(present=True)}})
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
def test_concurrent_writes_in_two_processes_end_alike_in_both_in_every_order(
    here: bool, there: bool, clocks: tuple[int, int]
) -> None:
    """Each writes, receives the other's write, and fetches all entries of the other at some moment. Whoever
    had received the other's write before its own has the last word."""
    steps = ("write0", "write1", "recv0", "recv1", "ask0", "ask1", "fetch0", "fetch1")
    order_of = (("write0", "recv1"), ("write1", "recv0"), ("ask0", "fetch0"), ("ask1", "fetch1"))
    for order in in_order(steps, *order_of):
        processes = [cordons_of(clock=lambda at=at: at)[0] for at in clocks]  # type: ignore[misc]
        writes: list[Updates] = [{}, {}]
        answers: list[Updates] = [{}, {}]
        for step in order:
            which = int(step[-1])
            match step[:-1]:
                case "write":
                    writes[which] = processes[which].write({URL: {PAUSE: (here, there)[which]}})
                case "recv":
                    processes[which].merge(writes[1 - which])
                case "ask":
                    answers[which] = processes[1 - which].all
                case "fetch":
                    processes[which].merge(answers[which])
        ends = {process.of(URL) == {PAUSE} for process in processes}
        assert len(ends) == 1, order
        for last, received in (("write0", "recv0"), ("write1", "recv1")):
            if order.index(received) < order.index(last):
                assert ends == {(here, there)[int(last[-1])]}, order


@pytest.mark.parametrize(("here", "there"), list(product([True, False], repeat=2)))
def test_concurrent_writes_in_two_gateways_end_alike_in_both_and_the_store_in_every_order(
    here: bool, there: bool
) -> None:
    """Each write reaches the store later; each gateway reads the store now and then, and at last."""
    steps = ("write0", "write1", "store0", "store1", "read0", "read1")
    for order in in_order(steps, ("write0", "store0"), ("write1", "store1")):
        gateways, store = [cordons_of(clock=lambda: 7)[0] for _ in range(2)], StoredCordons({})
        writes: list[Updates] = [{}, {}]
        for step in (*order, "read0", "read1"):
            which = int(step[-1])
            match step[:-1]:
                case "write":
                    writes[which] = gateways[which].write({URL: {PAUSE: (here, there)[which]}})
                case "store":
                    store.update(writes[which])
                case "read":
                    gateways[which].merge_store_change(URL, StoredCordons(store.members).known.get(URL, {}))
        stored = {reason for reason, entry in store.known[URL].items() if entry.present}
        assert gateways[0].of(URL) == gateways[1].of(URL) == stored, order


def test_oldest_tombstones_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOMBSTONES", 10)
    monkeypatch.setattr(module, "TOMBSTONES_PER_WORKER", 2)
    cordons, _ = cordons_of()
    for number in range(100):
        cordons.write({f"http://{number}:1": {BY_OWNER: True}})
        cordons.write({f"http://{number}:1": {BY_OWNER: False}})
    assert list(cordons.all) == [f"http://{number}:1" for number in range(88, 100)]


def test_removed_reason_does_not_end_the_cordon_of_a_record() -> None:
    cordons, worker = cordons_of(WorkerRecord(URL, cordoned=True))
    cordons.write({URL: {BY_OWNER: True}})
    cordons.write({URL: {BY_OWNER: False}})
    assert CordonSource.OWNER in worker.cordons


def test_allowed_weights_uncordon_in_every_process_that_sees_this_version() -> None:
    cordons, worker = cordons_of(least="5")
    fleet = cordons._fleet
    for version, cordoned in (("3", False), ("4", True)):
        cordons.write({URL: {weights_allowed("3"): True}})
        fleet.describe(worker, {"echo": WorkerInfo("engine", "cap", True, weight_version=version)})
        assert (CordonSource.WEIGHTS in worker.cordons) is cordoned
    cordons.write({URL: {weights_allowed("4"): True}})
    assert not worker.cordons
