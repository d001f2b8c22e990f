"""The token budget of a worker: how long a prompt and its reply may be together, and who refuses longer ones.

Owns: the record, its JSON form and the rule. Must never enter: where a budget comes from, the words of a
refusal, how a prompt is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LIMIT = "combined_limit"
_SWITCHES = ("reject_prompt_overflow", "reject_total_overflow")
#: Limits are 32 bits without a sign.
MOST_TOKENS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The most tokens that a prompt and its reply may have together, ``combined_limit``.

    The other two say which requests over the limit are refused. The engine judges those that are not: it may
    truncate them.
    """

    combined_limit: int
    reject_prompt_overflow: bool = False
    reject_total_overflow: bool = False

    @classmethod
    def read(cls, document: object) -> TokenBudget:
        """Return the budget that a JSON value describes; a switch that is missing is False.

        Raises ValueError, whose message names the member at fault.
        """
        if not isinstance(document, Mapping):
            raise ValueError("must be an object")
        for name in document:
            if name != _LIMIT and name not in _SWITCHES:
                raise ValueError(f"{name}: no such member")
        limit = document.get(_LIMIT)
        if type(limit) is not int or not 0 <= limit <= MOST_TOKENS:
            raise ValueError(f"{_LIMIT}: must be an integer from 0 to {MOST_TOKENS}")
        prompt, total = (document.get(name, False) for name in _SWITCHES)
        for name, value in zip(_SWITCHES, (prompt, total), strict=True):
            if not isinstance(value, bool):
                raise ValueError(f"{name}: must be true or false")
        return cls(limit, prompt, total)

    def document(self) -> dict[str, int | bool]:
        """Return the JSON form, with all members."""
        return {
            _LIMIT: self.combined_limit,
            _SWITCHES[0]: self.reject_prompt_overflow,
            _SWITCHES[1]: self.reject_total_overflow,
        }

    @property
    def strict(self) -> bool:
        """True if any request is refused."""
        return self.reject_prompt_overflow or self.reject_total_overflow

    def refuses(self, prompt_tokens: int, max_tokens: int | None) -> bool:
        """Return True if such a request must be refused.

        ``max_tokens`` is the length of the reply that is asked for, None if it is left open: there must be
        room for one token.
        """
        if prompt_tokens >= self.combined_limit:
            return self.reject_prompt_overflow
        return self.reject_total_overflow and prompt_tokens + (max_tokens or 1) > self.combined_limit
