"""Sequences are found by an id, or by a prefix of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.sim.sequence import Sequence, SequenceIndex


def file(index: SequenceIndex, id: str) -> Sequence:
    sequence: Sequence = SimpleNamespace(id=id)  # type: ignore[assignment]
    index.add(sequence)
    return sequence


def test_sequences_of_one_id_are_found_until_each_is_discarded() -> None:
    index = SequenceIndex()
    first, second = file(index, "job-1"), file(index, "job-1")
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
def test_beginning_finds_longer_ids_and_the_same_one(prefix: str, ids: list[str]) -> None:
    index = SequenceIndex()
    for id in ("job-1", "job-10", "other"):
        file(index, id)
    assert index.with_prefix(prefix) == ids


def test_sequence_that_ends_after_all_was_forgotten_is_no_fault() -> None:
    index = SequenceIndex()
    sequence = file(index, "job-1")
    index.clear()
    index.discard(sequence)
    assert index.with_prefix("job") == []
