"""A fuzzing target, and the law for all targets: the cuts between reads change nothing of the result."""

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
    """One parser or reader under test.

    ``read`` takes the reads from a peer and returns the result; ``judge`` raises AssertionError if the result
    is wrong for the complete bytes. Any other exception is a fault as well.
    """

    name: str
    read: Callable[[Sequence[bytes]], T]
    judge: Callable[[bytes, T], None]

    def check(self, data: bytes, ways: Iterable[Pieces] = ()) -> None:
        """Try ``data`` in one read, in the usual cuts, and cut in ``ways``."""
        expected = self.read((data,) if data else ())
        self.judge(data, expected)
        for pieces in (*usual_cuts(data), *ways):
            result = self.read(pieces)
            self.judge(data, result)
            assert result == expected, (
                f"cut into {[len(piece) for piece in pieces][:40]}: {result!r}, in one read: {expected!r}"
            )

    def corpus(self) -> list[Path]:
        return sorted((CORPUS / self.name).iterdir())
