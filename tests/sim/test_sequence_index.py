"""Sequences are found by an id, or by a prefix of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.sim.sequence import Sequence, SequenceIndex


class Named:
    """The part of a sequence that the index reads."""

    def __init__(self, id: str) -> None:
        self.id = id


@pytest.fixture
def filed() -> tuple[SequenceIndex, Callable[[str], Sequence]]:
    index = SequenceIndex()

    def file(id: str) -> Sequence:
        sequence: Sequence = Named(id)  # type: ignore[assignment]
        index.add(sequence)
        return sequence

    return index, file


Filed = tuple[SequenceIndex, Callable[[str], Sequence]]


def test_sequences_of_one_id_are_found_until_each_is_discarded(filed: Filed) -> None:
    index, file = filed
    first, second = file("job-1"), file("job-1")
    assert index.get("job-1") == [first, second]
    index.discard(first)
    assert index.get("job-1") == [second] and "job-1" in index
    index.discard(second)
    assert index.get("job-1") == [] and "job-1" not in index


@pytest.mark.parametrize(
    ("prefix", "ids"),
    [
        ("job-1", ["job-1", "job-10"]),
        ("job-", ["job-1", "job-10"]),
        ("job-10", ["job-10"]),
        ("job-2", []),
        ("k", []),
    ],
)
def test_beginning_finds_longer_ids_and_the_same_one(filed: Filed, prefix: str, ids: list[str]) -> None:
    index, file = filed
    file("job-1"), file("job-10"), file("other")
    assert index.with_prefix(prefix) == ids


def test_sequence_that_ends_after_all_was_forgotten_is_no_fault(filed: Filed) -> None:
    index, file = filed
    sequence = file("job-1")
    index.clear()
    index.discard(sequence)
    assert index.with_prefix("job") == []
