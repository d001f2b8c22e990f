"""SGLang's replies: key by key in the engine's order, written without a serialiser where it is hot.

Owns: the shape of reply objects and events. Must never enter: when they are written.
"""

from __future__ import annotations

from typing import Any

from gateway.sim.config import SimConfig
from gateway.sim.engine import encode, wall_clock
from gateway.sim.scheduler import Finish, Sequence
from gateway.sim.sglang.request import Item, Request
from gateway.sim.tokens import logprob, word, words

_NULL = b"null"


class _Written:
    """What was rendered of one sequence so far."""

    __slots__ = ("ids", "item", "rid", "shown", "text")

    def __init__(self, item: Item, rid: bytes) -> None:
        self.item = item
        self.rid = rid
        self.text = ""
        self.shown = 0
        self.ids = b""


class SglangReply:
    """Renders one request's answer. Sequences are told apart by their index."""

    def __init__(self, request: Request, config: SimConfig, received: float) -> None:
        self._request = request
        self._config = config
        self._incremental = config.incremental_streaming_output
        self._received = received
        self._parts: dict[int, _Written] = {}

    # What answers call.

    def event(self, sequence: Sequence, sent: int, first: bool) -> bytes:
        written = self._written(sequence)
        if sequence.finish is not None and sequence.finish.queued:
            return b"data: %b\n\n" % self._echo(sequence, written)
        return b"data: %b\n\n" % self._object(sequence, written, sent, first, streamed=True)

    def closing(self, sequences: list[Sequence]) -> bytes:
        return b"data: [DONE]\n\n"

    def whole(self, sequences: list[Sequence]) -> tuple[int, bytes]:
        bodies = [self._whole(sequence) for sequence in sequences]
        return 200, b"[%b]" % b",".join(bodies) if self._request.listed else bodies[0]

    def _whole(self, sequence: Sequence) -> bytes:
        written = self._written(sequence)
        if sequence.finish is not None and sequence.finish.queued:
            return self._echo(sequence, written)
        return self._object(sequence, written, 0, True, streamed=False)

    def _written(self, sequence: Sequence) -> _Written:
        written = self._parts.get(sequence.index)
        if written is None:
            item = self._request.items[sequence.index // self._request.n]
            written = self._parts[sequence.index] = _Written(item, encode(sequence.id))
        return written

    # One object.

    def _object(
        self, sequence: Sequence, written: _Written, sent: int, first: bool, *, streamed: bool
    ) -> bytes:
        output = sequence.output
        new = output if not sent else output[sent:]
        ids = b",".join([b"%d" % token for token in new])
        text = self._text(sequence, written, new)
        delta = streamed and self._incremental
        if not delta:
            ids = written.ids = ids if not sent else b"%b,%b" % (written.ids, ids) if ids else written.ids
        finish = sequence.finish
        cached = sequence.cached
        return (
            b'{%b"output_ids":[%b],"meta_info":{"id":%b,"finish_reason":%b,"prompt_tokens":%d,"weight_version":%b,"num_retractions":%d%b%b,"reasoning_tokens":0,"completion_tokens":%d,"cached_tokens":%d%b,"cached_tokens_details":%b,"dp_rank":null%b}%b}'
            % (  # noqa: E501
                b"" if self._config.skip_tokenizer else b'"text":%b,' % text,
                ids,
                written.rid,
                _NULL if finish is None else _finish(finish, sequence),
                len(sequence.prompt),
                encode(sequence.versions[-1][0]),
                sequence.retractions,
                self._early_timings(sequence) if self._config.enable_metrics else b"",
                b""
                if written.item.logprobs is None
                else self._logprobs(sequence, written.item, sent if delta else 0),
                len(output),
                cached,
                b"" if finish is None else b',"weight_versions":%b' % _versions(sequence),
                b'{"device":%d,"host":0}' % cached if cached else _NULL,
                self._late_timings(sequence, first, streamed=streamed),
                self._tail(sequence, streamed),
            )
        )

    def _tail(self, sequence: Sequence, streamed: bool) -> bytes:
        tail = b""
        if self._request.return_prompt:
            tail = b',"prompt_token_ids":%b' % encode(sequence.prompt)
        if streamed and self._request.listed:
            tail += b',"index":%d' % sequence.index
        return tail

    def _echo(self, sequence: Sequence, written: _Written) -> bytes:
        """A request that ended while it waited: the tokenizer side answers for the scheduler."""
        finish = sequence.finish
        assert finish is not None
        reason: dict[str, Any] = {"type": "abort"}
        if finish.status is not None:
            reason["status_code"] = finish.status
        reason["message"] = finish.message
        meta = {
            "id": sequence.id,
            "finish_reason": reason,
            "weight_version": sequence.versions[-1][0] if sequence.versions else "default",
            "e2e_latency": sequence.ended - sequence.created,
            "weight_versions": [{"version": "default", "start": 0, "end": len(sequence.output)}],
            "completion_tokens": len(sequence.output),
            "response_sent_to_client_ts": wall_clock(),
        }
        echo = {"text": words(sequence.output), "output_ids": sequence.output[-1:], "meta_info": meta}
        if self._request.listed:
            echo["index"] = sequence.index
        return encode(echo)

    # Text.

    def _text(self, sequence: Sequence, written: _Written, new: list[int]) -> bytes:
        """The text as JSON: all so far, or in incremental streams what is new."""
        params = written.item.params
        if params.stop or params.stop_regex:
            text = _visible(sequence, written.item)
        elif not self._incremental and not written.text:
            text = words(new)
        else:
            text = written.text + words(new)
        if self._incremental:
            shown, written.shown = text[written.shown :], max(written.shown, len(text))
            written.text = text
            return b'"%b"' % shown.encode()
        written.text = text
        return b'"%b"' % text.encode() if text.isascii() and '"' not in text else encode(text)

    # Log probabilities.

    def _logprobs(self, sequence: Sequence, item: Item, start: int) -> bytes:
        wanted = item.logprobs
        assert wanted is not None
        output, states = sequence.output[start:], sequence.states[start:]
        meta: dict[str, Any] = {
            "input_token_logprobs": _prompt_logprobs(item),
            "output_token_logprobs": [
                [logprob(state, token), token, word(token) if wanted.text else None]
                for state, token in zip(states, output, strict=True)
            ],
            "output_token_logprobs_length": len(sequence.output),
        }
        if wanted.top:
            meta["input_top_logprobs"] = _prompt_alternatives(item, wanted.top)
            meta["output_top_logprobs"] = [
                _ranked(state, token, wanted.top, self._config.vocab_size, wanted.text)
                for state, token in zip(states, output, strict=True)
            ]
        if wanted.ids:
            row = [
                [-1.0 - token % 64 / 8, token, word(token) if wanted.text else None] for token in wanted.ids
            ]
            prompt = [None] + [row] * (len(item.prompt) - wanted.start - 1) if wanted.start >= 0 else []
            meta["input_token_ids_logprobs"] = prompt
            meta["output_token_ids_logprobs"] = [row] * len(output)
        return b"," + encode(meta)[1:-1]

    # Timings.

    def _early_timings(self, sequence: Sequence) -> bytes:
        queue = sequence.started - sequence.created
        entry = self._received + queue
        meta = {
            "storage_prefetch_wait": 0.0,
            "storage_staging_wait": 0.0,
            "forward_entry_time": entry,
            "prefill_finished_time": entry + (sequence.first - sequence.started),
            "queue_time": queue,
        }
        return b"," + encode(meta)[1:-1]

    def _late_timings(self, sequence: Sequence, first: bool, *, streamed: bool) -> bytes:
        if sequence.finish is None:
            return b',"response_sent_to_client_ts":%.7f' % wall_clock() if first else b""
        latency = sequence.ended - sequence.created
        if not self._config.enable_metrics:
            sent = b',"response_sent_to_client_ts":%.7f' % wall_clock() if first else b""
            return b',"e2e_latency":%.9f%b' % (latency, sent)
        meta: dict[str, Any] = {
            "e2e_latency": latency,
            "request_received_ts": self._received,
            "first_token_latency": sequence.first - sequence.created,
            "api_server_dispatch_finish_ts": self._received,
        }
        after = {"response_sent_to_client_ts": self._received + latency}
        meta |= after if streamed and not first else {}
        meta["request_finished_ts"] = self._received + latency
        made = len(sequence.output)
        if made > 1:
            meta["decode_throughput"] = (made - 1) / max(sequence.ended - sequence.first, 1e-6)
        meta |= after if first else {}
        return b"," + encode(meta)[1:-1]


def _finish(finish: Finish, sequence: Sequence) -> bytes:
    if finish.kind == "length":
        return b'{"type":"length","length":%d}' % sequence.sampling.limit
    if finish.kind == "stop":
        return b'{"type":"stop","matched":%b}' % encode(finish.matched)
    kind = "BadRequestError" if finish.status == 400 else None
    reason = {"type": "abort", "message": finish.message, "status_code": finish.status, "err_type": kind}
    return encode(reason)


def _versions(sequence: Sequence) -> bytes:
    spans = [{"version": version, "start": start, "end": end} for version, start, end in sequence.spans()]
    return encode(spans)


def _visible(sequence: Sequence, item: Item) -> str:
    """The text without the stop string, or without what may turn out to be the start of one."""
    text, params, finish = sequence.text, item.params, sequence.finish
    if finish is not None and isinstance(finish.matched, str):
        if params.no_stop_trim or finish.matched not in params.stop:
            return text
        return text[: text.rindex(finish.matched)]
    if finish is not None:
        return text
    held = 0
    for stop in params.stop:
        for size in range(min(len(stop) - 1, len(text)), held, -1):
            if text.endswith(stop[:size]):
                held = size
                break
    return text[: len(text) - held]


def _prompt_logprobs(item: Item) -> list[list[Any]]:
    wanted = item.logprobs
    assert wanted is not None
    if wanted.start < 0:
        return []
    prompt = item.prompt[wanted.start :]
    rows: list[list[Any]] = []
    for at, token in enumerate(prompt):
        value = None if not at else logprob(prompt[at - 1], token, 4)
        rows.append([value, token, word(token) if wanted.text else None])
    return rows


def _prompt_alternatives(item: Item, top: int) -> list[Any]:
    wanted = item.logprobs
    assert wanted is not None
    if wanted.start < 0:
        return []
    prompt = item.prompt[wanted.start :]
    rows: list[Any] = [None]
    for before in prompt[:-1]:
        rows.append(_ranked(before, before, top, 1 << 62, wanted.text))
    return rows


def _ranked(state: int, token: int, top: int, size: int, text: bool) -> list[list[Any]]:
    """``top`` ids from the most to the least likely, ``token`` first."""
    others = ((token + rank * 7919) % size for rank in range(1, top + 1))
    ids = [token, *(other for other in others if other != token)][:top]
    return [
        [logprob(state, token, rank), other, word(other) if text else None]
        for rank, other in enumerate(ids, 1)
    ]
