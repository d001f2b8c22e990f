"""The last-writer-wins map of cordons: replicas agree, in whatever order entries arrive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations

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


def in_order(steps: str, before: str) -> Sequence[Sequence[str]]:
    """All orders of ``steps`` in which each first one of the pairs in ``before`` comes before the second."""
    pairs = [pair.split("<") for pair in before.split()]
    orders = permutations(steps.split())
    return [each for each in orders if all(each.index(one) < each.index(two) for one, two in pairs)]


#: Each process writes, receives the other's write, and fetches all entries of the other at some moment.
PROCESSES = in_order(
    "write0 write1 recv0 recv1 ask0 ask1 fetch0 fetch1", "write0<recv1 write1<recv0 ask0<fetch0 ask1<fetch1"
)
#: Each write reaches the store later; each gateway reads the store now and then, and at last.
GATEWAYS = in_order("write0 write1 store0 store1 read0 read1", "write0<store0 write1<store1")


@pytest.mark.parametrize("orders", [PROCESSES, GATEWAYS], ids=["processes", "gateways"])
@pytest.mark.parametrize("values", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("clocks", [(7, 7), (8, 7)])
def test_concurrent_writes_end_alike_everywhere_in_every_order(
    orders: Sequence[Sequence[str]], values: tuple[bool, bool], clocks: tuple[int, int]
) -> None:
    """Whoever had received the other's write before its own has the last word."""
    for order in orders:
        replicas = [replica(writer, clock) for writer, clock in zip("ab", clocks, strict=True)]
        store = read_cordons({})
        writes: list[Updates] = [{}, {}]
        answers: list[Updates] = [{}, {}]
        for step in (*order, *(("read0", "read1") if orders is GATEWAYS else ())):
            which = int(step[-1])
            match step[:-1]:
                case "write":
                    writes[which] = replicas[which].edit({KEY: values[which]})
                case "recv":
                    replicas[which].merge(writes[1 - which])
                case "ask":
                    answers[which] = replicas[1 - which].snapshot()
                case "fetch":
                    replicas[which].merge(answers[which])
                case "store":
                    store.merge(writes[which])
                case "read":
                    replicas[which].merge_change(read_cordons(members_of(store.snapshot())).snapshot())
        last = [
            which
            for which in (0, 1)
            if f"recv{which}" in order and order.index(f"recv{which}") < order.index(f"write{which}")
        ]
        ends = {has(each) for each in replicas} | ({has(store)} if orders is GATEWAYS else set())
        assert ends == {values[last[0]]} if last else len(ends) == 1, order
