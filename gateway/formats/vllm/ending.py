"""From what a reply told to how it ended: the one classifier of this dialect.

Owns: the meaning of finish reasons. Must never enter: reading bytes.
"""

from __future__ import annotations

from gateway.formats.contract import Ending, ReplyFacts

#: Said of a sample that an abort call, a client that left, or a server that shuts down has cut short; the
#: reply does not tell which.
ABORTED = "abort"
#: The engine turns this into an error of the whole reply; here in case one slips through.
FAILED = "error"

_PLAIN = {"stop": Ending.STOP, "length": Ending.LENGTH}


def ending_of(facts: ReplyFacts) -> Ending:
    """How a reply ended that is whole."""
    reasons = frozenset(facts.finish_reasons)
    if FAILED in reasons:
        return Ending.ENGINE_ABORT
    if facts.error_status is not None:
        return Ending.ERROR_EVENT
    if ABORTED in reasons:
        return Ending.CLIENT_ABORT
    return _PLAIN.get(next(iter(reasons)), Ending.OTHER) if len(reasons) == 1 else Ending.OTHER
