"""How a reply ended that is whole, as its bytes tell: the one judge for every reader.

Owns: from facts to an Ending. Must never enter: reading bytes.
"""

from __future__ import annotations

from gateway.formats.contract import Ending, ReplyFacts

_BY_REASON = {"stop": Ending.STOP, "length": Ending.LENGTH, "abort": Ending.CLIENT_ABORT}


def ending_of(facts: ReplyFacts, *, error_event: bool) -> Ending:
    """The ending of a whole reply with these facts; ``error_event``: an error stood in place of a sample.

    An abort whose finish reason has a status is the engine's own doing, one without was asked for.
    """
    if error_event:
        return Ending.ERROR_EVENT
    if facts.error_status is not None:
        return Ending.ENGINE_ABORT
    reasons = set(facts.finish_reasons)
    return _BY_REASON.get(reasons.pop(), Ending.OTHER) if len(reasons) == 1 else Ending.OTHER
