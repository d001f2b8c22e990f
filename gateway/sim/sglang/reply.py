"""SGLang's replies, with the keys in the engine's order.

Owns: the shape of reply objects, events and log probabilities (recorded from SGLang 0.5.22). Must never
enter: when they are written. Bytes are formatted without a serialiser where it is hot.
"""

from __future__ import annotations

from typing import Any

from gateway.sim.config import SimConfig
from gateway.sim.engine import encode, wall_clock
from gateway.sim.sequence import Finish, Sequence
from gateway.sim.sglang.request import Item, Logprobs, Request
from gateway.sim.tokens import logprob, ranked, word, words

_NULL = b"null"
_OBJECT = (
    b'{%b"output_ids":[%b],"meta_info":{"id":%b,"finish_reason":%b,"prompt_tokens":%d,"weight_version":%b,'
    b'"num_retractions":%d%b%b,"reasoning_tokens":0,"completion_tokens":%d,"cached_tokens":%d%b,'
    b'"cached_tokens_details":%b,"dp_rank":null%b}%b}'
)
_EVENT = b"data: %b\n\n"
Triple = list[Any]
_PROMPT_RANK = 4  # a prompt's own ids are rarely what the model would have said


class _Written:
    """The parts of one sequence rendered so far: all ids as JSON, all text, and how much of the text was
    sent.
    """

    __slots__ = ("ids", "item", "rid", "sent_text", "text")

    def __init__(self, item: Item, rid: bytes) -> None:
        self.item = item
        self.rid = rid
        self.ids = b""
        self.text = ""
        self.sent_text = 0


class SglangReply:
    """The renderer of one request's answer. ``received`` is the wall clock at its arrival, in seconds."""

    def __init__(self, request: Request, config: SimConfig, received: float) -> None:
        self._request = request
        self._config = config
        self._incremental = config.incremental_streaming_output
        self._received = received
        self._written: dict[int, _Written] = {}

    def event(self, sequence: Sequence, sent: int, *, first: bool) -> bytes:
        finish = sequence.finish
        if finish is not None and finish.queued:
            return _EVENT % self._echo(sequence, finish, streamed=True)
        return _EVENT % self._object(sequence, sent, first=first, streamed=True)

    def closing(self, sequences: list[Sequence]) -> bytes:
        return b"data: [DONE]\n\n"

    def unary(self, sequences: list[Sequence]) -> tuple[int, bytes]:
        bodies = [self._unary(sequence) for sequence in sequences]
        return 200, b"[%b]" % b",".join(bodies) if self._request.listed else bodies[0]

    def _unary(self, sequence: Sequence) -> bytes:
        finish = sequence.finish
        if finish is not None and finish.queued:
            return self._echo(sequence, finish, streamed=False)
        return self._object(sequence, 0, first=True, streamed=False)

    def _object(self, sequence: Sequence, sent: int, *, first: bool, streamed: bool) -> bytes:
        written = self._state(sequence)
        delta = streamed and self._incremental
        finish, cached = sequence.finish, sequence.cached
        new = sequence.output if not sent else sequence.output[sent:]
        wanted = written.item.logprobs
        return _OBJECT % (
            b"" if self._config.skip_tokenizer else self._text(sequence, written, new, delta=delta),
            self._ids(written, new, delta=delta),
            written.rid,
            _NULL if finish is None else _finish(finish, sequence),
            len(sequence.prompt),
            encode(sequence.versions[-1][0]),
            sequence.retractions,
            self._early_timings(sequence) if self._config.enable_metrics else b"",
            _render_logprobs(sequence, wanted, sent if delta else 0, self._config) if wanted else b"",
            len(sequence.output),
            cached,
            b"" if finish is None else b',"weight_versions":%b' % encode(sequence.spans()),
            b'{"device":%d,"host":0}' % cached if cached else _NULL,
            self._late_timings(sequence, first=first, streamed=streamed),
            self._outside(sequence, streamed=streamed),
        )

    def _state(self, sequence: Sequence) -> _Written:
        written = self._written.get(sequence.index)
        if written is None:
            item = self._request.items[sequence.index // self._request.n]
            written = self._written[sequence.index] = _Written(item, encode(sequence.id))
        return written

    def _ids(self, written: _Written, new: list[int], *, delta: bool) -> bytes:
        ids = b",".join([b"%d" % token for token in new])
        if delta:
            return ids
        written.ids = b"%b,%b" % (written.ids, ids) if written.ids and ids else written.ids or ids
        return written.ids

    def _text(self, sequence: Sequence, written: _Written, new: list[int], *, delta: bool) -> bytes:
        params = written.item.params
        if params.stop or params.stop_regex:
            written.text = _visible(sequence, written.item)
        else:
            written.text += words(new)
        if not delta:
            return b'"text":"%b",' % written.text.encode()
        text = written.text[written.sent_text :]
        written.sent_text = max(written.sent_text, len(written.text))
        return b'"text":"%b",' % text.encode()

    def _outside(self, sequence: Sequence, *, streamed: bool) -> bytes:
        """Return the members that follow ``meta_info``."""
        tail = b""
        if self._request.return_prompt:
            tail = b',"prompt_token_ids":%b' % encode(sequence.prompt)
        if streamed and self._request.listed:
            tail += b',"index":%d' % sequence.index
        return tail

    def _echo(self, sequence: Sequence, finish: Finish, *, streamed: bool) -> bytes:
        """Return the reply to a request that ended in the queue, which the frontend makes in the scheduler's
        place.
        """
        reason: dict[str, Any] = {"type": "abort"}
        if finish.status is not None:
            reason["status_code"] = finish.status
        reason["message"] = finish.message
        output = sequence.output
        meta = {
            "id": sequence.id,
            "finish_reason": reason,
            "weight_version": sequence.versions[-1][0],
            "e2e_latency": sequence.times.ended - sequence.times.created,
            "weight_versions": sequence.spans(),
            "completion_tokens": len(output),
            "response_sent_to_client_ts": wall_clock(),
        }
        # In an incremental stream the engine sends the whole text again, and the last id once more.
        ids = output[-1:] if streamed and self._incremental else output
        echo: dict[str, Any] = {"text": words(output), "output_ids": ids, "meta_info": meta}
        if streamed and self._request.listed:
            echo["index"] = sequence.index
        return encode(echo)

    # Timings.

    def _early_timings(self, sequence: Sequence) -> bytes:
        queue = sequence.times.started - sequence.times.created
        entry = self._received + queue
        meta = {
            "storage_prefetch_wait": 0.0,
            "storage_staging_wait": 0.0,
            "forward_entry_time": entry,
            "prefill_finished_time": entry + sequence.times.first - sequence.times.started,
            "queue_time": queue,
        }
        return b"," + encode(meta)[1:-1]

    def _late_timings(self, sequence: Sequence, *, first: bool, streamed: bool) -> bytes:
        sent = b',"response_sent_to_client_ts":%.7f' % wall_clock() if first else b""
        if sequence.finish is None:
            return sent
        latency = sequence.times.ended - sequence.times.created
        if not self._config.enable_metrics:
            return b',"e2e_latency":%.9f%b' % (latency, sent)
        return b"," + encode(self._metrics(sequence, latency, first=first, streamed=streamed))[1:-1]

    def _metrics(self, sequence: Sequence, latency: float, *, first: bool, streamed: bool) -> dict[str, Any]:
        received = self._received
        meta = {
            "e2e_latency": latency,
            "request_received_ts": received,
            "first_token_latency": max(0.0, sequence.times.first - sequence.times.created),
            "api_server_dispatch_finish_ts": received,
        }
        if streamed and not first:
            meta["response_sent_to_client_ts"] = received + sequence.times.first - sequence.times.created
        meta["request_finished_ts"] = received + latency
        made = len(sequence.output)
        if made > 1:
            meta["decode_throughput"] = (made - 1) / max(sequence.times.ended - sequence.times.first, 1e-6)
        if first:
            meta["response_sent_to_client_ts"] = wall_clock()
        return meta


def _finish(finish: Finish, sequence: Sequence) -> bytes:
    if finish.kind == "length":
        return b'{"type":"length","length":%d}' % sequence.sampling.limit
    if finish.kind == "stop":
        return b'{"type":"stop","matched":%b}' % encode(finish.matched)
    kind = {None: None, 400: "BadRequestError"}.get(finish.status, "InternalServerError")
    return encode(
        {"type": "abort", "message": finish.message, "status_code": finish.status, "err_type": kind}
    )


def _visible(sequence: Sequence, item: Item) -> str:
    """Return the text without the stop string, and without an end that may be the start of one."""
    text, params, finish = sequence.text, item.params, sequence.finish
    if finish is not None:
        matched = finish.matched
        if not isinstance(matched, str) or params.no_stop_trim:
            return text
        if matched in params.stop:
            return text[: text.rindex(matched)]
        found = next((regex.search(text) for regex in params.stop_regex if regex.pattern == matched), None)
        return text[: found.end()] if found is not None else text
    held = 0
    for stop in params.stop:
        for size in range(min(len(stop) - 1, len(text)), held, -1):
            if text.endswith(stop[:size]):
                held = size
                break
    return text[: len(text) - held]


def _render_logprobs(sequence: Sequence, wanted: Logprobs, sent: int, config: SimConfig) -> bytes:
    """Return the members with log probabilities, a comma in front; those of the output start at its token
    ``sent``.
    """
    output = list(zip(sequence.states[sent:], sequence.output[sent:], strict=True))
    prompt = sequence.prompt[wanted.start :] if wanted.start >= 0 else []
    # Each position of the prompt is predicted by the one before it, the first one by none.
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
