"""What can be fuzzed, and the one law of all of it: cutting bytes into reads in another way changes nothing.

Owns: the record of a target, and trying bytes on it. Must never enter: what a target does with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tests.fuzz.hostile import Pieces, usual_cuts

T = TypeVar("T")

CORPUS = Path(__file__).parents[2] / "fixtures" / "fuzz"


@dataclass(frozen=True)
class Target(Generic[T]):
    """``read`` takes bytes as they come from a peer and tells all that was made of them; ``judge`` fails by
    AssertionError where that is wrong for the bytes as a whole. Any other exception is a fault as well."""

    name: str
    read: Callable[[Sequence[bytes]], T]
    judge: Callable[[bytes, T], None]

    def check(self, data: bytes, ways: Iterable[Pieces] = ()) -> None:
        """Try ``data``, whole and cut in ``ways`` and the usual ones."""
        whole = self.read((data,) if data else ())
        self.judge(data, whole)
        for pieces in (*usual_cuts(data), *ways):
            told = self.read(pieces)
            self.judge(data, told)
            assert told == whole, (
                f"cut into {[len(piece) for piece in pieces][:40]}: {told!r}, whole: {whole!r}"
            )

    def corpus(self) -> list[Path]:
        """The kept inputs, in the order of their names."""
        return sorted((CORPUS / self.name).iterdir())
