"""The ending of a complete reply, derived from its facts; used by every reader of this format.

Owns: the meaning of finish reasons (SGLang 0.5.22). Must never enter: reading bytes.
"""

from __future__ import annotations

from gateway.formats.contract import Ending, ReplyFacts

_BY_REASON = {"stop": Ending.STOP, "length": Ending.LENGTH, "abort": Ending.CLIENT_ABORT}


def ending_of(facts: ReplyFacts, *, error_event: bool) -> Ending:
    """Return the ending of a complete reply with these facts.

    ``error_event``: an error stood in place of a sample. An abort whose finish reason has a status was
    decided by the engine, one without a status was requested.
    """
    if error_event:
        return Ending.ERROR_EVENT
    if facts.error_status is not None:
        return Ending.ENGINE_ABORT
    reasons = set(facts.finish_reasons)
    return (_BY_REASON.get(reasons.pop()) if len(reasons) == 1 else None) or Ending.OTHER
