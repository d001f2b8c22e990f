"""A small model of SGLang, written from what its frontend does and not from what the format reads."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ending, ReplyHead
from gateway.formats.sglang import FORMAT
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.model import ModelExchange, ModelWorker
from tests.contract.models.wire import DONE, EVENTS, JSON, compact, event

#: What an id decodes to. None: nothing yet, its bytes are complete only with the next id.
WORDS = (" the", "é", None, '"', "\\", "\n", "😀", "", "]", "a")
#: Of each token, and sent in parts by an incremental stream.
PER_TOKEN = (
    "output_token_logprobs",
    "output_top_logprobs",
    "output_token_ids_logprobs",
    "output_token_sampling_mask",
    "output_token_sampling_logprobs",
    "custom_score",
)
SPECULATED = {"spec_verify_ct": 3, "spec_accept_rate": 0.75, "spec_correct_drafts_histogram": [1, 2]}
CLOCKS = (
    "response_sent_to_client_ts",
    "e2e_latency",
    "queue_time",
    "forward_entry_time",
    "request_finished_ts",
)


@dataclass(frozen=True)
class Wanted:
    """What a request asks for beside the tokens, and how the engine was started."""

    incremental: bool
    text: bool
    logprobs: bool
    top: int
    flat: bool
    mask: bool
    extras: bool
    metrics: bool
    prompt_ids: bool


@dataclass
class Sample:
    """One sample. ``status``: the scheduler refuses it; ``echo``: it ends while it is queued."""

    rid: str
    index: int | None
    prompt: list[int]
    ids: list[int]
    ends: list[int]
    finish: dict[str, Any]
    echo: bool
    wanted: Wanted
    sent: int = field(default=0)
    sent_text: int = field(default=0)

    @property
    def status(self) -> int | None:
        status = self.finish.get("status_code")
        return status if isinstance(status, int) else None

    def text(self, count: int, *, over: bool) -> str:
        """What is decoded of the first ``count`` ids; the last may be incomplete, until nothing follows."""
        words = [WORDS[token % len(WORDS)] for token in self.ids[:count]]
        if words and words[-1] is None and not over:
            words.pop()
        return "".join("\ufffd" if word is None else word for word in words)

    def document(self, count: int, *, over: bool, first: bool) -> dict[str, Any]:
        """The document after ``count`` ids, of a cumulative stream or a unary reply."""
        wanted = self.wanted
        document: dict[str, Any] = {}
        if wanted.text or self.echo and over:
            # An echo has the text that was decoded by then; nothing completes it.
            decoded = self.text(count, over=over and not self.echo)
            document["text"] = decoded if wanted.text else ""
        document["output_ids"] = self.ids[:count]
        meta = self._echo(count) if self.echo and over else self._meta(count, over=over)
        if first:
            meta["response_sent_to_client_ts"] = 1795951312.5
        document["meta_info"] = meta
        if wanted.prompt_ids:
            document["prompt_token_ids"] = self.prompt
        return document

    def part(self, count: int, *, over: bool, first: bool) -> dict[str, Any]:
        """The event of an incremental stream after ``count`` ids."""
        document = self.document(count, over=over, first=first)
        before, self.sent = self.sent, count
        if self.echo and over:
            document["output_ids"] = document["output_ids"][-1:]
            return document
        document["output_ids"] = document["output_ids"][before:]
        if "text" in document:
            document["text"], self.sent_text = document["text"][self.sent_text :], len(document["text"])
        meta = document["meta_info"]
        meta.update({name: meta[name][before:] for name in PER_TOKEN if name in meta})
        return document

    def _meta(self, count: int, *, over: bool) -> dict[str, Any]:
        wanted = self.wanted
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": self.finish if over else None,
            "prompt_tokens": len(self.prompt),
            "weight_version": "v2" if count > 2 else "v1",
            "num_retractions": 0,
        }
        if wanted.metrics:
            meta |= {"forward_entry_time": 1795951312.25, "queue_time": 0.000125}
        if wanted.logprobs:
            meta |= self._logprobs(count)
        if wanted.mask:
            meta["output_token_sampling_mask"] = [[token, token + 1] for token in self.ids[:count]]
            meta["output_token_sampling_logprobs"] = [-0.5 - token for token in self.ids[:count]]
            meta["output_token_sampling_mask_length"] = count
        meta |= {"reasoning_tokens": count // 2, "completion_tokens": count, "cached_tokens": 1}
        if over:
            meta["weight_versions"] = self._versions(count)
        meta["cached_tokens_details"] = {"device": 1, "host": 0}
        if wanted.extras:
            meta["custom_score"] = [f"s{token}" for token in self.ids[:count]]
            meta["hidden_states"] = [[0.5, token] for token in self.ids[:count]]
            if over:
                array = b"".join(token.to_bytes(4, "little") for token in self.prompt + self.ids)
                meta["routed_experts"] = base64.b64encode(array + bytes(12)).decode()
                meta |= SPECULATED
        meta["dp_rank"] = None
        if over:
            meta["e2e_latency"] = 0.0375
            if wanted.metrics:
                meta["request_finished_ts"] = 1795951313.75
        return meta

    def _echo(self, count: int) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": self.finish,
            "weight_version": "v1",
            "e2e_latency": 0.25,
            "weight_versions": self._versions(count),
        }
        if self.wanted.logprobs:
            meta |= self._logprobs(count)
        meta["completion_tokens"] = count
        return meta

    def _versions(self, count: int) -> list[dict[str, Any]]:
        spans = [{"version": "v1", "start": 0, "end": min(2, count)}]
        return spans + [{"version": "v2", "start": 2, "end": count}] if count > 2 else spans

    def _logprobs(self, count: int) -> dict[str, Any]:
        wanted, ids = self.wanted, self.ids[:count]
        meta: dict[str, Any] = {
            "input_token_logprobs": [_triple(None, token) for token in self.prompt[:1]]
            + [_triple(-1.25, token) for token in self.prompt[1:]],
            "output_token_logprobs": [_triple(-0.125 * token, token) for token in ids],
            "output_token_logprobs_length": count,
        }
        if wanted.top:
            if wanted.flat:
                meta |= {"input_top_logprobs_val_flat": [-1.5, -2.5], "input_top_logprobs_shape": [1, 2]}
                array = base64.b64encode(bytes(range(16))).decode()
                meta |= {"input_top_logprobs_idx_flat_b64": array, "input_top_logprobs_null_prefix": 1}
            else:
                meta["input_top_logprobs"] = [None, [_triple(-1.5, 7)]]
            meta["output_top_logprobs"] = [
                [_triple(-0.5 - place, token + place) for place in range(wanted.top)] for token in ids
            ]
            meta["input_token_ids_logprobs"] = [None]
            meta["output_token_ids_logprobs"] = [[_triple(-3.5, 9)] if token % 2 else None for token in ids]
        return meta


class SglangModel:
    """SGLang 0.5.22. ``stream_mode`` is how it streams; ``reported``: its probes contain the mode."""

    def __init__(self, stream_mode: str = "incremental", *, reported: bool = True) -> None:
        self.incremental = stream_mode == "incremental"
        self.worker = ModelWorker(
            WorkerInfo("sglang", FORMAT.capability, True, stream_mode=stream_mode if reported else None)
        )

    @property
    def format(self) -> AnyFormat:
        return FORMAT

    def exchanges(self) -> SearchStrategy[ModelExchange]:
        return _exchanges(self.incremental)

    def merges(self, exchange: ModelExchange) -> SearchStrategy[tuple[bytes, ...]]:
        return _merges(exchange, incremental=self.incremental)


@st.composite
def _exchanges(draw: DrawFn, incremental: bool) -> ModelExchange:
    batch = draw(st.sampled_from((None, None, None, 1, 2, 3)))
    fan = draw(st.sampled_from((1, 1, 2)))
    prompts = [draw(st.lists(_TOKEN, min_size=1, max_size=3)) for _ in range(batch or 1)]
    body = _body(draw, batch, fan, prompts)
    if draw(st.integers(0, 15)) == 0:
        return _refused(body)
    wanted = Wanted(incremental, *draw(_WANTED))
    names = list(_names(body, len(prompts), fan))
    listed = batch is not None or fan > 1
    samples = [
        _sample(draw, name, place if listed else None, prompts[place // fan], wanted)
        for place, name in enumerate(names)
    ]
    stream = _stream(draw, samples)
    failed = [sample for sample in _order(stream, samples) if sample.status is not None]
    replies = [sample.document(len(sample.ids), over=True, first=True) for sample in samples]
    unary = compact(replies if listed else replies[0])
    head = JSON
    if failed:
        head, unary = _error(failed[0])
    clean = not failed and not any(sample.echo for sample in samples)
    return ModelExchange(
        body=compact(body),
        headers=((b"content-type", b"application/json"),),
        stream_head=EVENTS,
        stream=tuple(stream),
        unary_head=head,
        unary=unary,
        tokens=sum(len(sample.ids) for sample in samples if sample.status is None),
        prompt_tokens=sum(map(len, prompts)) if clean else None,
        finish_reasons=tuple(sample.finish["type"] for sample in _order(stream, samples)),
        ending=Ending.ENGINE_ABORT if failed else _ending({sample.finish["type"] for sample in samples}),
        volatile=frozenset(CLOCKS),
    )


_TOKEN = st.integers(0, 99)
_BOOL = st.booleans()
# Like none that are drawn elsewhere: two of one spelling could not be distinguished in a reply.
_ID = st.integers(0, 2**112 - 1).map("job-{:028x}".format)
_WANTED = st.tuples(
    st.sampled_from((True, True, False)), _BOOL, st.integers(0, 2), _BOOL, _BOOL, _BOOL, _BOOL, _BOOL
)
_ABORT = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
_ENDS: tuple[tuple[dict[str, Any], bool], ...] = (
    ({"type": "length", "length": 6}, False),
    ({"type": "stop", "matched": 7}, False),
    ({"type": "stop", "matched": 'wor"d'}, False),
    (_ABORT, False),
    ({"type": "abort", "message": "Abort in waiting queue"}, True),
    ({"type": "abort", "status_code": 503, "message": "The request queue is full."}, True),
    ({"type": "abort", "message": "no such session", "status_code": 400, "err_type": "E"}, False),
    ({"type": "abort", "message": "out of memory", "status_code": 500, "err_type": "E"}, False),
)


def _body(draw: DrawFn, batch: int | None, fan: int, prompts: list[list[int]]) -> dict[str, Any]:
    body: dict[str, Any] = {"input_ids": prompts[0] if batch is None else prompts, "stream": True}
    if fan > 1 or draw(_BOOL):
        body["sampling_params"] = {"n": fan, "max_new_tokens": 6}
    named = draw(st.integers(0, 2))
    if named == 1:
        body["rid"] = draw(_ID)
    elif named == 2 and batch is not None:
        body["rid"] = draw(st.lists(_ID, min_size=batch, max_size=batch, unique=True))
    return body


def _names(body: dict[str, Any], prompts: int, fan: int) -> Iterator[str]:
    """The engine's ids: its own for several samples of a prompt, numbered where one names a batch."""
    rid = body.get("rid")
    for place in range(prompts * fan):
        if fan > 1 or rid is None:
            yield f"{place + 0xABC:032x}"
        elif isinstance(rid, list):
            yield rid[place]
        else:
            yield rid if not isinstance(body["input_ids"][0], list) else f"{rid}_{place}"


def _sample(draw: DrawFn, rid: str, index: int | None, prompt: list[int], wanted: Wanted) -> Sample:
    finish, echo = draw(st.sampled_from(_ENDS))
    refused = finish.get("status_code") is not None
    # Of a token that comes twice in a row, nobody can say whether an echo repeats all or only the last.
    ids = [] if refused else draw(st.lists(_TOKEN, max_size=6, unique=echo))
    ends = sorted(draw(st.sets(st.integers(1, len(ids)), max_size=5))) if ids else []
    # An echo comes after all that was made; any other last event has the last token.
    if echo and ids:
        ends = sorted({*ends, len(ids)})
    elif ends and ends[-1] == len(ids):
        ends.pop()
    return Sample(rid, index, prompt, ids, ends, finish, echo, wanted)


def _stream(draw: DrawFn, samples: list[Sample]) -> list[bytes]:
    """Each sample's events in order, those of several samples mixed."""
    queues = [[*((end, False) for end in sample.ends), (len(sample.ids), True)] for sample in samples]
    stream: list[bytes] = []
    fresh = set(range(len(samples)))
    while any(queues):
        waiting = [place for place, queue in enumerate(queues) if queue]
        place = draw(st.sampled_from(waiting)) if len(waiting) > 1 else waiting[0]
        count, over = queues[place].pop(0)
        sample = samples[place]
        make = sample.part if sample.wanted.incremental else sample.document
        document = make(count, over=over, first=place in fresh)
        fresh.discard(place)
        if sample.index is not None:
            document["index"] = sample.index
        stream.append(event(document))
    return [*stream, DONE]


def _order(stream: list[bytes], samples: list[Sample]) -> list[Sample]:
    """The samples in the order of their ends."""
    documents = [json.loads(sent[6:]) for sent in stream[:-1]]
    ended = [item.get("index", 0) for item in documents if item["meta_info"]["finish_reason"]]
    return [samples[place] for place in ended]


def _error(sample: Sample) -> tuple[ReplyHead, bytes]:
    """The unary reply if a sample is refused."""
    status, message = sample.status, sample.finish["message"]
    assert status is not None
    body: dict[str, Any] = {"error": {"message": message}}
    if status != 400:
        body = {"object": "error", "message": message, "type": str(status), "param": None, "code": status}
    return ReplyHead(status, JSON.headers), compact(body)


def _refused(body: dict[str, Any]) -> ModelExchange:
    """A value error: found before anything is made, but after the status of a stream was sent."""
    error = {"message": "max_new_tokens must be at least 0, got -1."}
    more = {"type": "invalid_request_error", "code": 400, "retryable": False}
    return ModelExchange(
        body=compact(body),
        headers=(),
        stream_head=EVENTS,
        stream=(event({"error": error | more}), DONE),
        unary_head=ReplyHead(400, JSON.headers),
        unary=compact({"error": error}),
        tokens=0,
        prompt_tokens=None,
        finish_reasons=(),
        ending=Ending.ERROR_EVENT,
    )


def _ending(reasons: set[str]) -> Ending:
    words = {"stop": Ending.STOP, "length": Ending.LENGTH, "abort": Ending.CLIENT_ABORT}
    return words[reasons.pop()] if len(reasons) == 1 else Ending.OTHER


@st.composite
def _merges(draw: DrawFn, exchange: ModelExchange, *, incremental: bool) -> tuple[bytes, ...]:
    """What was queued for a reader that was slow: joined in an incremental stream, the newest in another.

    The first event of a sample finds its reader waiting.
    """
    merged: list[bytes] = []
    begun: set[int] = set()
    waiting: dict[int, list[dict[str, Any]]] = {}
    for sent in exchange.stream[:-1]:
        document = json.loads(sent[6:])
        index = document.get("index", 0)
        queue = waiting.setdefault(index, [])
        queue.append(document)
        begins = index not in begun
        begun.add(index)
        if begins or document["meta_info"]["finish_reason"] is not None or draw(_BOOL):
            merged.append(event(_coalesced(queue) if incremental else _newest(queue)))
            queue.clear()
    return (*merged, DONE)


def _coalesced(queue: list[dict[str, Any]]) -> dict[str, Any]:
    document = _newest(queue)
    if len(queue) == 1:
        return document
    document["output_ids"] = [token for each in queue for token in each["output_ids"]]
    if "text" in document:
        document["text"] = "".join(each.get("text", "") for each in queue)
    metas = [each["meta_info"] for each in queue]
    for name in PER_TOKEN:
        if any(name in meta for meta in metas):
            document["meta_info"][name] = [item for meta in metas for item in meta.get(name, [])]
    return document


def _newest(queue: list[dict[str, Any]]) -> dict[str, Any]:
    """The first event that is sent has the time of sending."""
    document = dict(queue[-1])
    sent = "response_sent_to_client_ts"
    if any(sent in each.get("meta_info", ()) for each in queue):
        document["meta_info"] = document["meta_info"] | {sent: 1795951312.75}
    return document


def _triple(value: float | None, token: int) -> list[Any]:
    return [value, token, WORDS[token % len(WORDS)]]
