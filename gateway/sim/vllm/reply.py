"""vLLM's replies: every key in the engine's order, nulls included.

Owns: the shape of reply objects and chunks (recorded from vLLM 0.33.0). Must never enter: when they are
written.
"""

from __future__ import annotations

from typing import Any

from gateway.sim.config import SimConfig
from gateway.sim.engine import encode, wall_clock
from gateway.sim.sequence import Sequence
from gateway.sim.tokens import logprob, ranked, word, words
from gateway.sim.vllm import errors
from gateway.sim.vllm.request import Request

_NULL = b"null"


class VllmReply:
    """The renderer of one request's answer. The index of a sequence is that of its choice."""

    def __init__(self, id: str, request: Request, config: SimConfig) -> None:
        self._id = encode(id)
        self._request = request
        self._config = config
        self._mode = encode(request.output_mode)
        self._plain = request.output_mode == "tokens" and request.params.logprobs is None

    # Called by the answer.

    def event(self, sequence: Sequence, sent: int, *, first: bool) -> bytes:
        request, finish = self._request, sequence.finish
        if finish is not None and finish.status is not None:
            return errors.failed().event()
        usage = self._usage([sequence]) if request.continuous_usage else _NULL
        extra = b""
        if request.return_token_ids and first and sequence.index == 0:
            extra = b'"prompt_token_ids":%b,' % encode(request.prompt)
        choice = self._choice(sequence, sent)
        return b'data: {"request_id":%b,"usage":%b,%b"output_mode":%b,"choices":[%b]}\n\n' % (
            self._id,
            usage,
            extra,
            self._mode,
            choice,
        )

    def closing(self, sequences: list[Sequence]) -> bytes:
        if not self._request.include_usage:
            return b"data: [DONE]\n\n"
        made = sum(len(sequence.output) for sequence in sequences)
        prompt = len(self._request.prompt)
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}
        return b'data: {"request_id":%b,"usage":%b,"output_mode":%b,"choices":[]}\n\ndata: [DONE]\n\n' % (
            self._id,
            encode(usage),
            self._mode,
        )

    def unary(self, sequences: list[Sequence]) -> tuple[int, bytes]:
        if any(sequence.finish is not None and sequence.finish.status is not None for sequence in sequences):
            refusal = errors.failed().refusal()
            return refusal.status, refusal.body
        request = self._request
        prompt_ids = encode(request.prompt) if request.return_token_ids else _NULL
        choices = b",".join([self._choice(sequence, 0) for sequence in sequences])
        return 200, (
            b'{"request_id":%b,"model":%b,"created":%d,"usage":%b,"prompt_logprobs":%b,'
            b'"prompt_token_id_logprobs":null,"prompt_token_ids":%b,"mm_placeholders":null,"metrics":null,'
            b'"kv_transfer_params":%b,"ec_transfer_params":%b,"output_mode":%b,"choices":[%b]}'
        ) % (
            self._id,
            encode(request.model or self._config.model),
            wall_clock(),
            self._usage(sequences),
            _NULL if request.params.prompt_logprobs is None else encode(self._prompt_logprobs()),
            prompt_ids,
            encode(request.kv_transfer_params),
            encode(request.ec_transfer_params),
            self._mode,
            choices,
        )

    # Parts.

    def _choice(self, sequence: Sequence, sent: int) -> bytes:
        finish, output = sequence.finish, sequence.output
        new = output if not sent else output[sent:]
        reason = stop = versions = _NULL
        if finish is not None:
            reason = b'"%b"' % finish.kind.encode()
            stop = self._stop_reason(finish.matched)
            versions = encode(sequence.spans())
        tail = b',"logprobs":null' if self._plain else self._text_and_logprobs(sequence, sent)
        return (
            b'{"index":%d,"finish_reason":%b,"stop_reason":%b,"token_ids":[%b],"routed_experts":null,'
            b'"sampling_mask":null,"weight_versions":%b%b}'
        ) % (sequence.index, reason, stop, b",".join([b"%d" % token for token in new]), versions, tail)

    def _stop_reason(self, matched: int | str | None) -> bytes:
        """Return the stop string or id; an end-of-sequence id is reported only without a tokenizer."""
        known = matched == self._config.eos_token_id and not self._config.skip_tokenizer
        return _NULL if known else encode(matched)

    def _usage(self, sequences: list[Sequence]) -> bytes:
        made = sum([len(sequence.output) for sequence in sequences])
        prompt = len(self._request.prompt)
        details = _NULL
        if self._config.enable_prompt_tokens_details:
            details = b'{"cached_tokens":%d}' % sequences[0].cached
        return (
            b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":%b,'
            b'"completion_tokens_details":null}'
        ) % (prompt, prompt + made, made, details)

    def _text_and_logprobs(self, sequence: Sequence, sent: int) -> bytes:
        text = b""
        if self._request.output_mode == "text":
            text = b',"text":%b' % encode(self._text(sequence, sent))
        if self._request.params.logprobs is None:
            return text + b',"logprobs":null'
        pairs = list(zip(sequence.states, sequence.output, strict=True))[sent:]
        if not pairs:
            return text + b',"logprobs":null'
        render = self._as_text if self._request.output_mode == "text" else self._as_ids
        content = [render(state, token) for state, token in pairs]
        return text + b',"logprobs":' + encode({"content": content})

    def _text(self, sequence: Sequence, sent: int) -> str:
        """Return the new text, up to a stop string."""
        text = words(sequence.output)
        matched = sequence.finish.matched if sequence.finish is not None else None
        if isinstance(matched, str) and not self._request.params.include_stop:
            text = text[: text.rindex(matched)]
        return text[len(words(sequence.output[:sent])) :]

    def _ranked(self, state: int, token: int) -> list[tuple[int, float, int]]:
        top = ranked(state, token, max(1, self._request.params.logprobs or 0), self._config.vocab_size)
        return [(other, value, rank) for rank, (other, value) in enumerate(top, 1)]

    def _as_ids(self, state: int, token: int) -> dict[str, Any]:
        top = [
            {"token_id": other, "logprob": value, "rank": rank}
            for other, value, rank in self._ranked(state, token)
        ]
        return {**top[0], "top_logprobs": top}

    def _as_text(self, state: int, token: int) -> dict[str, Any]:
        top = [
            {"token": word(other), "logprob": value, "bytes": list(word(other).encode())}
            for other, value, _ in self._ranked(state, token)
        ]
        return {**top[0], "top_logprobs": top}

    def _prompt_logprobs(self) -> list[dict[str, Any] | None]:
        """Return one entry per position: null first, then the prompt's own id and, if wanted, the likeliest
        ids.
        """
        prompt, top = self._request.prompt, self._request.params.prompt_logprobs or 0
        rows: list[dict[str, Any] | None] = [None]
        for before, token in zip(prompt, prompt[1:], strict=False):
            row = {str(token): self._entry(before, token, 1 + top)}
            for rank in range(1, top + 1):
                other = (before + rank * 7919) % self._config.vocab_size
                row.setdefault(str(other), self._entry(before, other, rank))
            rows.append(row)
        return rows

    def _entry(self, before: int, token: int, rank: int) -> dict[str, Any]:
        decoded = None if self._config.skip_tokenizer else word(token)
        return {"logprob": logprob(before, token, rank), "rank": rank, "decoded_token": decoded}
