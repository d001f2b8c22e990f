"""Which sequences of an engine go by which id.

Owns: finding them by an id or the beginning of one. Must never enter: what is done with them.
"""

from __future__ import annotations

from gateway.sim.sequence import Sequence


class ById:
    """Several may have one id. Mostly ids are of one length, so that none begins another: that is found out
    without looking at each."""

    def __init__(self) -> None:
        self._sequences: dict[str, list[Sequence]] = {}
        self._lengths: dict[int, int] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._sequences

    def add(self, sequence: Sequence) -> None:
        self._sequences.setdefault(sequence.id, []).append(sequence)
        length = len(sequence.id)
        self._lengths[length] = self._lengths.get(length, 0) + 1

    def discard(self, sequence: Sequence) -> None:
        """Does nothing if it is not there: the whole engine was stopped before."""
        same = self._sequences.get(sequence.id)
        if same is None:
            return
        same.remove(sequence)
        if not same:
            del self._sequences[sequence.id]
        length = len(sequence.id)
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]

    def clear(self) -> None:
        self._sequences.clear()
        self._lengths.clear()

    def of(self, id: str) -> list[Sequence]:
        """Those with exactly this id."""
        return list(self._sequences.get(id, ()))

    def beginning(self, prefix: str) -> list[str]:
        """The ids that begin so."""
        if any(length > len(prefix) for length in self._lengths):
            return [id for id in self._sequences if id.startswith(prefix)]
        return [prefix] if prefix in self else []
