"""The log probabilities in a SGLang reply.

Owns: their keys and shapes. Must never enter: the rest of a reply.
"""

from __future__ import annotations

from typing import Any

from gateway.sim.config import SimConfig
from gateway.sim.engine import encode
from gateway.sim.sequence import Sequence
from gateway.sim.sglang.request import Logprobs
from gateway.sim.tokens import logprob, ranked, word

Triple = list[Any]
_PROMPT_RANK = 4  # a prompt's own ids are rarely what the model would have said


def render(sequence: Sequence, wanted: Logprobs, sent: int, config: SimConfig) -> bytes:
    """The keys, with a comma in front; those of the output from its token ``sent`` on."""
    output = list(zip(sequence.states[sent:], sequence.output[sent:], strict=True))
    prompt = sequence.prompt[wanted.start :] if wanted.start >= 0 else []
    # Each position of the prompt is predicted by the one before it; the first one by none.
    pairs = list(zip(prompt, prompt[1:], strict=False))
    meta: dict[str, Any] = {
        "input_token_logprobs": [_triple(None, token, wanted) for token in prompt[:1]]
        + [_triple(logprob(before, token, _PROMPT_RANK), token, wanted) for before, token in pairs],
        "output_token_logprobs": [_triple(logprob(state, token), token, wanted) for state, token in output],
        "output_token_logprobs_length": len(sequence.output),
    }
    if wanted.top:
        size = config.vocab_size
        meta["input_top_logprobs"] = [None] * bool(prompt) + [
            _top(before, before % size, wanted, size) for before, _ in pairs
        ]
        meta["output_top_logprobs"] = [_top(state, token, wanted, size) for state, token in output]
    if wanted.ids:
        meta["input_token_ids_logprobs"] = [None] * bool(prompt) + [
            _chosen(before, wanted) for before, _ in pairs
        ]
        meta["output_token_ids_logprobs"] = [_chosen(state, wanted) for state, _ in output]
    return b"," + encode(meta)[1:-1]


def _triple(value: float | None, token: int, wanted: Logprobs) -> Triple:
    return [value, token, word(token) if wanted.text else None]


def _top(state: int, token: int, wanted: Logprobs, size: int) -> list[Triple]:
    return [_triple(value, other, wanted) for other, value in ranked(state, token, wanted.top, size)]


def _chosen(state: int, wanted: Logprobs) -> list[Triple]:
    return [_triple(logprob(state, token, _PROMPT_RANK), token, wanted) for token in wanted.ids]
