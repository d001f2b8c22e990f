"""The progress of a stream over all its samples.

Owns: turning the content of events into facts, for every reader of streams. Must never enter: bytes.
"""

from __future__ import annotations

from typing import Any

from gateway.formats.contract import ReplyFacts
from gateway.formats.vllm.ending import FAILED
from gateway.formats.vllm.reply import Usage, error_status, note_usage


class Progress:
    """The progress of a stream with ``samples`` samples, distinguished by index; each has to finish."""

    __slots__ = ("_samples", "facts", "finished")

    def __init__(self, samples: int) -> None:
        self.facts = ReplyFacts()
        self.finished: set[int] = set()
        self._samples = samples

    def finish(self, index: int, reason: str) -> None:
        """Record that the sample ``index`` has finished; later events of it change nothing."""
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
        """Record an error object. Return its status."""
        self.facts.terminal = True
        self.facts.error_status = status = error_status(error)
        return status
