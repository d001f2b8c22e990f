"""TensorRT-LLM's replies: every key in the engine's order, nulls included.

Owns: the shape of reply objects and chunks. Must never enter: when they are written.
"""

from __future__ import annotations

import uuid
from typing import Any

from gateway.sim.config import SimConfig
from gateway.sim.engine import encode, wall_clock
from gateway.sim.sequence import Sequence
from gateway.sim.tokens import ranked, word, words
from gateway.sim.trtllm import errors
from gateway.sim.trtllm.request import Request

Json = dict[str, Any]


class TrtllmReply:
    """The renderer of one request's answer. The index of a sequence is that of its choice."""

    def __init__(self, number: int, request: Request, config: SimConfig) -> None:
        self._request = request
        self._config = config
        several = len(request.prompts) > 1
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex if several or not request.stream else number}",
            "object": "text_completion",
            "created": int(wall_clock()),
            "model": request.model,
        }

    # Called by the answer.

    def event(self, sequence: Sequence, sent: int, *, first: bool) -> bytes:
        if _failed(sequence) and sequence.finish is not None:
            return errors.event(sequence.finish.message)
        usage = self._usage([sequence]) if self._request.continuous_usage else None
        return _data({**self._head, "choices": [self._choice(sequence, sent)], "usage": usage})

    def closing(self, sequences: list[Sequence]) -> bytes:
        parts = []
        if self._request.include_usage:
            for start in range(0, len(sequences), self._request.n):
                samples = sequences[start : start + self._request.n]
                if not any(map(_failed, samples)):
                    parts.append(_data({**self._head, "choices": [], "usage": self._usage(samples)}))
        return b"".join((*parts, b"data: [DONE]\n\n"))

    def unary(self, sequences: list[Sequence]) -> tuple[int, bytes]:
        for sequence in sequences:
            if _failed(sequence) and sequence.finish is not None:
                refusal = errors.refusal(f"Generation failed: {sequence.finish.message}")
                return refusal.status, refusal.body
        choices = []
        for sequence in sequences:
            choice = self._choice(sequence, 0)
            tail = {name: choice.pop(name) for name in ("finish_reason", "stop_reason")}
            average = choice.pop("avg_decoded_tokens_per_iter")
            choices.append(
                {
                    **choice,
                    "context_logits": None,
                    **tail,
                    "disaggregated_params": None,
                    "avg_decoded_tokens_per_iter": average,
                }
            )
        ids: list[int] | None = [] if len(self._request.prompts) > 1 else None
        usage = self._usage(sequences)
        return 200, encode({**self._head, "choices": choices, "usage": usage, "prompt_token_ids": ids})

    # Parts.

    def _choice(self, sequence: Sequence, sent: int) -> Json:
        finish, request = sequence.finish, self._request
        new = sequence.output[sent:]
        return {
            "index": sequence.index,
            "text": self._text(sequence, sent) if request.detokenize else "",
            "token_ids": None if request.detokenize else new,
            "logprobs": self._logprobs(sequence, sent) if request.logprobs else None,
            "finish_reason": None if finish is None else _REASONS.get(finish.kind, finish.kind),
            "stop_reason": self._stop_reason(sequence),
            "avg_decoded_tokens_per_iter": 1.0,
        }

    def _text(self, sequence: Sequence, sent: int) -> str:
        text = words(sequence.output)
        matched = None if sequence.finish is None else sequence.finish.matched
        if isinstance(matched, str):
            text = text[: text.rindex(matched)]
        return text[len(words(sequence.output[:sent])) :]

    def _stop_reason(self, sequence: Sequence) -> int | str | None:
        matched = None if sequence.finish is None else sequence.finish.matched
        return None if matched == self._config.eos_token_id else matched

    def _logprobs(self, sequence: Sequence, sent: int) -> Json:
        pairs = list(zip(sequence.states, sequence.output, strict=True))[sent:]
        tops = [
            ranked(state, token, self._request.logprobs, self._config.vocab_size) for state, token in pairs
        ]
        tokens = [word(token) for _, token in pairs]
        offsets: list[int] = []
        for token in tokens:
            offsets.append(offsets[-1] + len(token) if offsets else 0)
        return {
            "text_offset": offsets,
            "token_logprobs": [top[0][1] for top in tops],
            "tokens": tokens,
            "top_logprobs": [{word(other): value for other, value in top} for top in tops],
        }

    def _usage(self, sequences: list[Sequence]) -> Json:
        """Return the usage of the samples of one prompt or of all; each prompt counts once."""
        prompts = sequences[:: self._request.n]
        prompt = sum(len(sequence.prompt) for sequence in prompts)
        made = sum(len(sequence.output) for sequence in sequences)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + made,
            "completion_tokens": made,
            "prompt_tokens_details": {"cached_tokens": sum(sequence.cached for sequence in prompts)},
        }


_REASONS = {"abort": "cancelled"}


def _failed(sequence: Sequence) -> bool:
    return sequence.finish is not None and sequence.finish.status is not None


def _data(document: Json) -> bytes:
    return b"data: %b\n\n" % encode(document)
