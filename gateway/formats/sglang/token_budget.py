"""The token budget of an SGLang server.

Owns: how it follows from the server's settings (SGLang 0.5.22 and older). Must never enter: enforcing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.cards.token_budget import MOST_TOKENS, TokenBudget

#: The algorithms of speculation that put drafts into the slots of a reply, and after which a block of the
#: cache has one token more than its page. The last is an older name of the first.
EAGLE = ("EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NEXTN")


def token_budget(info: Mapping[str, Any], context_length: int | None) -> TokenBudget | None:
    """Return the budget that ``info``, the reply of ``/server_info``, allows to derive; None: it is unknown.

    A server that truncates by itself refuses nothing. With adaptive speculation the reserve changes while the
    server runs.
    """
    truncates, reserve = info.get("allow_auto_truncate"), _reserve(info)
    if context_length is None or context_length > MOST_TOKENS or not isinstance(truncates, bool):
        return None
    if reserve is None or not 0 <= reserve <= context_length or info.get("speculative_adaptive") is True:
        return None
    return TokenBudget(context_length - reserve, not truncates, not truncates)


def _reserve(info: Mapping[str, Any]) -> int | None:
    """Return the tokens of the context that are kept for drafts; None: it is not known."""
    if info.get("speculative_algorithm") not in EAGLE:
        return 0
    topk, steps = info.get("speculative_eagle_topk"), info.get("speculative_num_steps")
    drafts = info.get("speculative_num_draft_tokens")
    if type(topk) is not int or type(steps) is not int or type(drafts) is not int:
        return None
    return max(topk * steps, drafts)
