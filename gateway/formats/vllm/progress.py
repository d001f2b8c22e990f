"""What a stream has told so far, over all its samples.

Owns: turning what is in events into facts, the same for every reader of streams. Must never enter: bytes.
"""

from __future__ import annotations

from typing import Any

from gateway.formats.contract import ReplyFacts
from gateway.formats.vllm.ending import FAILED
from gateway.formats.vllm.reply import Usage, error_status, note_usage


class Progress:
    """``samples`` is how many replies are told apart by index; each has to finish."""

    __slots__ = ("_samples", "facts", "finished")

    def __init__(self, samples: int) -> None:
        self.facts = ReplyFacts()
        self.finished: set[int] = set()
        self._samples = samples

    def finish(self, index: int, reason: str) -> None:
        """The sample of that index is over; whatever it says after that changes nothing."""
        if index in self.finished:
            return
        self.finished.add(index)
        self.facts.finish_reasons.append(reason)
        if reason == FAILED:
            self.facts.error_status = 500
        if len(self.finished) >= self._samples:
            self.facts.terminal = True

    def usage(self, usage: Usage, *, total: bool) -> None:
        note_usage(self.facts, usage, total=total)

    def error(self, error: Any) -> int:
        """An error object. Returns its status."""
        self.facts.terminal = True
        self.facts.error_status = status = error_status(error)
        return status
