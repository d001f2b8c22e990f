"""Sequences are found by an id, or by what it begins with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.sim.by_id import ById
from gateway.sim.sequence import Sequence


class Named:
    """All that is looked at of a sequence."""

    def __init__(self, id: str) -> None:
        self.id = id


@pytest.fixture
def filed() -> tuple[ById, Callable[[str], Sequence]]:
    by_id = ById()

    def file(id: str) -> Sequence:
        sequence: Sequence = Named(id)  # type: ignore[assignment]
        by_id.add(sequence)
        return sequence

    return by_id, file


Filed = tuple[ById, Callable[[str], Sequence]]


def test_sequences_of_one_id_are_found_together_until_each_is_gone(filed: Filed) -> None:
    by_id, file = filed
    first, second = file("job-1"), file("job-1")
    assert by_id.of("job-1") == [first, second]
    by_id.discard(first)
    assert by_id.of("job-1") == [second] and "job-1" in by_id
    by_id.discard(second)
    assert by_id.of("job-1") == [] and "job-1" not in by_id


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
    by_id, file = filed
    file("job-1"), file("job-10"), file("other")
    assert by_id.beginning(prefix) == ids


def test_sequence_that_ends_after_all_was_forgotten_is_no_fault(filed: Filed) -> None:
    by_id, file = filed
    sequence = file("job-1")
    by_id.clear()
    by_id.discard(sequence)
    assert by_id.beginning("job") == []
