"""The ending of a complete reply, derived from its facts; used by every reader of this format.

Owns: the meaning of finish reasons (vLLM 0.33.0). Must never enter: reading bytes.
"""

from __future__ import annotations

from gateway.formats.contract import Ending, ReplyFacts

#: The finish reason of a sample cut short by an abort call, a client that disconnected or a server that shuts
#: down; the reply does not show which.
ABORTED = "abort"
#: The engine turns this reason into an error of the entire reply; handled here in case one gets through.
FAILED = "error"

_PLAIN = {"stop": Ending.STOP, "length": Ending.LENGTH}


def ending_of(facts: ReplyFacts) -> Ending:
    """Return the ending of a complete reply."""
    reasons = frozenset(facts.finish_reasons)
    if FAILED in reasons:
        return Ending.ENGINE_ABORT
    if facts.error_status is not None:
        return Ending.ERROR_EVENT
    if ABORTED in reasons:
        return Ending.CLIENT_ABORT
    return (_PLAIN.get(next(iter(reasons))) if len(reasons) == 1 else None) or Ending.OTHER
