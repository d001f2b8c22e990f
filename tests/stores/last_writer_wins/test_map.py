"""The last-writer-wins map of cordons: replicas agree, in whatever order entries arrive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import permutations, product

import pytest

from gateway.stores.file.cordons import members_of, read_cordons
from gateway.stores.last_writer_wins.map import (
    LastWriterWinsMap,
    Updates,
    Versioned,
    from_rows,
    to_rows,
    undated,
)

ENTRIES = [
    undated(present=False),
    undated(present=True),
    Versioned(7, "", True),
    Versioned(7, "a", False),
    Versioned(7, "b", True),
    Versioned(1 << 53, "a", False),
]
KEY = ("http://w:1", "paused:memory:kv_cache")
ADD, REMOVE = {KEY: True}, {KEY: False}


def replica(writer: str = "w", clock: int = 5, most: int = 1000) -> LastWriterWinsMap:
    return LastWriterWinsMap(lambda: most, writer, lambda: clock)


def has(entries: LastWriterWinsMap) -> bool:
    return (entry := entries.get(KEY)) is not None and entry.present


def test_later_entry_is_larger_and_so_is_its_text() -> None:
    """Entries of one moment have an arbitrary order, but they have one."""
    assert sorted(reversed(ENTRIES)) == ENTRIES
    texts = [entry.text for entry in ENTRIES if entry.dated]
    assert sorted(reversed(texts)) == texts and len(set(texts)) == 4
    assert all(text > "" for text in texts), "undated is older than all"


def test_text_and_json_are_read_as_they_were_written() -> None:
    for entry in ENTRIES:
        assert Versioned.from_text(entry.text, entry.present) == entry
    for text in ("", "7 a", "x", "٣" * 20 + " a", "-1 a"):
        assert Versioned.from_text(text, present=True) == undated(present=True)
    updates = {("http://w:1", str(number)): entry for number, entry in enumerate(ENTRIES)}
    assert from_rows(json.loads(json.dumps(to_rows(updates)))) == updates


def test_write_is_later_than_every_entry_that_was_merged_whatever_the_clocks_say() -> None:
    entries, ahead = replica(), {KEY: Versioned(1 << 60, "somebody", True)}
    assert entries.merge(ahead) == ahead
    entries.edit(REMOVE)
    assert not has(entries) and not entries.merge(ahead)
    assert entries.edit(ADD)[KEY] < entries.edit(REMOVE)[KEY]


def test_undated_change_counts_as_made_now_and_an_undated_state_as_older_than_any() -> None:
    """Somebody edits the file, or a gateway writes it that knows no order; or the file is read first."""
    entries, present = replica(), {KEY: undated(present=True)}
    assert entries.merge(present) and has(entries)
    entries.edit(REMOVE)
    assert not entries.merge(present) and not has(entries)
    assert not entries.merge_change({KEY: undated(present=False)})
    assert entries.merge_change(present) and has(entries)
    assert entries.merge_change({KEY: undated(present=False)}) and not has(entries)
    entries.edit(ADD)
    assert not entries.merge_change(present)


def test_oldest_tombstones_are_dropped() -> None:
    entries = replica(most=12)
    for number in range(100):
        entries.edit({(f"http://{number}:1", "held"): True, ("http://kept:1", f"{number}"): True})
        entries.edit({(f"http://{number}:1", "held"): False})
    left = [key for key in entries.snapshot() if key[1] == "held"]
    assert left == [(f"http://{number}:1", "held") for number in range(88, 100)]
    assert len(entries.snapshot()) == 112


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
        processes = [replica(writer, clock) for writer, clock in zip("ab", clocks, strict=True)]
        writes: list[Updates] = [{}, {}]
        answers: list[Updates] = [{}, {}]
        for step in order:
            which = int(step[-1])
            match step[:-1]:
                case "write":
                    writes[which] = processes[which].edit({KEY: (here, there)[which]})
                case "recv":
                    processes[which].merge(writes[1 - which])
                case "ask":
                    answers[which] = processes[1 - which].snapshot()
                case "fetch":
                    processes[which].merge(answers[which])
        ends = {has(process) for process in processes}
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
        gateways, store = [replica("a"), replica("b")], read_cordons({})
        writes: list[Updates] = [{}, {}]
        for step in (*order, "read0", "read1"):
            which = int(step[-1])
            match step[:-1]:
                case "write":
                    writes[which] = gateways[which].edit({KEY: (here, there)[which]})
                case "store":
                    store.merge(writes[which])
                case "read":
                    gateways[which].merge_change(read_cordons(members_of(store.snapshot())).snapshot())
        assert has(gateways[0]) == has(gateways[1]) == has(store), order
