"""The work of a function, counted in calls: a figure that a busy machine does not change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class CallCount:
    """The number of Python and C functions called in this thread so far."""

    calls = 0

    def count(self, frame: FrameType, event: str, argument: Any) -> None:
        self.calls += event in ("call", "c_call")


@contextmanager
def counted_calls() -> Iterator[CallCount]:
    """Count all calls within the block, those of other tasks included."""
    counter, before = CallCount(), sys.getprofile()
    sys.setprofile(counter.count)
    try:
        yield counter
    finally:
        sys.setprofile(before)


def calls_of(work: Callable[[], Any]) -> int:
    """Return how many functions are called while ``work`` runs."""
    with counted_calls() as counter:
        work()
    return counter.calls
