"""Clients' own ids are used by several processes, and no two of them clash."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.prefork import id_table
from gateway.prefork.id_table import MAX_LENGTH, MAX_LENGTHS, MAX_NAMES, IdTable, ProcessIds
from gateway.proxy.in_flight import RESERVED, InFlight

NAMES = st.text("ab", min_size=1, max_size=5)


def processes(count: int = 2) -> list[ProcessIds]:
    table = IdTable(count)
    return [table.of(number) for number in range(count)]


def adopt(*each: ProcessIds) -> None:
    """Let a moment pass in every process."""
    for one in each:
        one._adopt()


def clash(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 2), NAMES, st.booleans(), st.booleans()), max_size=40))
def test_id_is_used_exactly_if_it_clashes_with_none_of_another_process(
    steps: list[tuple[int, str, bool, bool]],
) -> None:
    """Exactly, once the processes know each other's lengths; before, it may be private without a clash."""
    all_of = processes(3)
    running: list[set[str]] = [set(), set(), set()]
    for number, name, end, wait in steps:
        process, own = all_of[number], running[number]
        if wait:
            adopt(*all_of)
        if end and own:
            process.release((own.pop(),))
        elif not any(clash(name, other) for other in own):  # gateway.proxy.in_flight sees to that
            free = not any(clash(name, other) for names in running for other in names)
            taken = process.claim((name,))
            assert free or not taken
            if not taken and free:
                adopt(*all_of)
                assert (taken := process.claim((name,)))
            if taken:
                own.add(name)
    for process, own in zip(all_of, running, strict=True):
        process.release(own)
    assert all(process.claim((name,)) for process, name in zip(all_of, "xyz", strict=True))


class Interrupted:
    """Memory in which another process does something between two accesses of this one."""

    def __init__(self, memory: mmap.mmap, after: int, then: Callable[[], object]) -> None:
        self._memory, self._left, self._then = memory, after, then

    def _count(self) -> mmap.mmap:
        self._left -= 1
        if self._left == -1:
            self._then()
        return self._memory

    def __getitem__(self, key: slice) -> bytes:
        return self._count()[key]

    def __setitem__(self, key: slice, value: bytes) -> None:
        self._count()[key] = value

    def find(self, entry: bytes, start: int, end: int) -> int:
        return self._count().find(entry, start, end)


@pytest.mark.parametrize("names", [("job-1", "job-1"), ("job-1", "job-10"), ("job-10", "job-1")])
@pytest.mark.parametrize("known", [(), ("xxxxx",), ("yyyyyy",), ("xxxxx", "yyyyyy")], ids=len)
@pytest.mark.parametrize("stay", [False, True], ids=["gone", "stay"])
def test_two_processes_that_take_clashing_ids_at_once_never_both_use_them(
    names: tuple[str, str], known: tuple[str, ...], stay: bool
) -> None:
    """Wherever one stands when the other takes its id, whatever lengths they know, and beside other ids."""
    for beside in (False, True):
        for after in range(200):
            one, two = processes()
            if known:
                assert one.claim(known)
                adopt(two)
            if known and not stay:
                one.release(known)
            if beside:
                two.claim(("other-0",))
            took: list[bool] = []
            then = partial(take_into, took, two, names[1])
            one._memory = Interrupted(one._memory, after, then)  # type: ignore[assignment]
            took_first = one.claim(names[:1])
            if not took:
                break
            assert not (took_first and took[0]), after
        else:
            raise AssertionError("a claim takes more than 200 steps")


def take_into(took: list[bool], process: ProcessIds, name: str) -> None:
    took.append(process.claim((name,)))


def test_length_that_is_new_while_another_process_has_ids_is_used_a_moment_later() -> None:
    one, two = processes()
    assert one.claim(("job-10",)), "nobody else has any"
    assert not two.claim(("other",)), "its length is new to the other"
    adopt(one)
    assert two.claim(("other",))
    assert not two.claim(("job-1",)), "a prefix of one that was there before"
    one.release(("job-10",))
    assert two.claim(("job-1",))


def test_ids_that_are_too_long_too_many_or_of_too_many_lengths_are_private_and_harm_nobody() -> None:
    one, two = processes()
    assert not one.claim(("x" * (MAX_LENGTH + 1),))
    assert not one.claim(tuple(f"{number:05}" for number in range(MAX_NAMES + 1)))
    for length in range(1, MAX_LENGTHS + 1):
        assert one.claim((chr(length + 96) * length,)) or length == MAX_LENGTHS
        adopt(two)
    assert not two.claim(("~" * (MAX_LENGTHS + 10),))
    adopt(one)
    assert two.claim(("!" * MAX_LENGTHS,))


def test_full_bucket_makes_ids_private_and_frees_what_they_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_table, "_BUCKETS", 1)
    [one] = processes(1)
    names = [f"job-{number}" for number in range(9)]
    assert [one.claim((name,)) for name in names] == [True] * 8 + [False]
    one.release(names[:8])
    assert one.claim(tuple(names[1:]))


def test_ids_of_a_process_that_died_stay_reserved_until_its_successor_forgets_them() -> None:
    table = IdTable(2)
    one, two = table.of(0), table.of(1)
    assert one.claim(("job-10",))
    adopt(two)
    successor = table.of(0)
    assert not two.claim(("job-10",)) and not two.claim(("job-1",))
    assert not successor.claim(("fresh!",)), "it does not know what clashes with the ids of the other"
    successor.forget_predecessor()
    assert two.claim(("job-10",))
    assert successor.claim(("fresh!",)) and not successor.claim(("job-10",))


def test_private_ids_of_several_processes_can_clash_with_no_clients_id() -> None:
    one, two = (InFlight[object](ids) for ids in processes())
    made = [one.claim(()), one.claim(("7", "8"), usable=False)]
    assert all(name.startswith(RESERVED) for ids in made for name in ids.dispatch)
    own = two.claim(("7", "8"))
    assert not own.private and one.claim(("8",)).private
    two.release(own)
    assert not one.claim(("8",)).private
    for ids in made:
        one.release(ids)
