"""What the replies of one worker have shown of late.

Owns: which of its last replies failed, and how long a good one takes. Must never enter: a clock, what follows
for the worker's state (``gateway.fleet.health.outliers``).
"""

from __future__ import annotations

from enum import StrEnum

#: Replies that are remembered.
WINDOW = 20
#: Weight of the last good reply in the mean duration of a good reply.
_WEIGHT = 0.1
_MASK = (1 << WINDOW) - 1


class ReplyOutcome(StrEnum):
    """What a reply, or its absence, says about the worker."""

    GOOD = "good"
    FAILED = "failed"  # failed: 5xx, 401, 403, 404, silence, a 200 with an error or of another dialect
    BROKEN = "broken"  # the reply broke off, or was no valid reply
    REFUSED = "refused"  # another error status: the request may be at fault
    UNKNOWN = "unknown"  # it ended before the worker could show anything; 429 and 503 are reported elsewhere


#: The outcome of most replies; see gateway.exchange.DISPATCH.
GOOD = ReplyOutcome.GOOD


class ReplyHistory:
    """The last WINDOW replies of one worker."""

    __slots__ = ("_bits", "count", "mean_seconds")

    def __init__(self) -> None:
        #: Mean duration of its good replies, recent ones weighted most; 0: there was none yet.
        self.mean_seconds = 0.0
        self.clear()

    def clear(self) -> None:
        """Forget which replies were good and which failed."""
        #: How many replies are remembered, and one bit for each: 1 if it failed, the last one lowest.
        self.count = self._bits = 0

    @property
    def failed(self) -> int:
        """How many of the remembered replies failed."""
        return self._bits.bit_count()

    def add_good(self, seconds: float) -> None:
        """Count a good reply that took ``seconds``."""
        self._bits = self._bits << 1 & _MASK
        if self.count < WINDOW:
            self.count += 1
        mean = self.mean_seconds
        self.mean_seconds = mean + _WEIGHT * (seconds - mean) if mean else seconds

    def add_failed(self) -> None:
        """Count a failed reply."""
        self._bits = (self._bits << 1 | 1) & _MASK
        if self.count < WINDOW:
            self.count += 1
