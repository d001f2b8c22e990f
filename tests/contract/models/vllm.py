"""A small model of vLLM's generate endpoint, as a client sees it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ending, Headers, ReplyHead
from gateway.formats.registry import load_formats
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.model import ModelExchange, ModelWorker, private_ids
from tests.contract.models.wire import DONE, compact, event
from tests.formats.vllm.support import VOLATILE

Json = dict[str, Any]

DATE = (b"date", b"Sun, 29 Nov 2026 11:14:38 GMT")
EVENTS = ReplyHead(200, [DATE, (b"content-type", b"text/event-stream; charset=utf-8")])
INFO = WorkerInfo(
    "vllm", "vllm_generate", usable=True, models=("base", "alias", "tuned"), adapters=("tuned",)
)
#: What was asked for -> what the engine calls it.
MODELS = {None: "base", "": "base", "base": "base", "alias": "base", "tuned": "tuned"}
ERRORS = (
    (400, "BadRequestError", "Token id 512 is out of vocabulary"),
    (500, "InternalServerError", "Internal server error é"),
    (503, "ServiceUnavailableError", "Generation is paused. Please retry after it resumes."),
)
ENDINGS = {
    "stop": Ending.STOP,
    "length": Ending.LENGTH,
    "repetition": Ending.OTHER,
    "abort": Ending.CLIENT_ABORT,
}
#: What speculative decoding tells, in place of the clock's figures.
SPECULATED = {"num_spec_steps": 3, "mean_acceptance_length": 1.5}
DRAFTS: Json = {"queue_time_ms": None, "speculative_decoding": SPECULATED}
#: Keys of a chunk that a slow reader gets from the first of those merged; all else is the last one's.
FROM_THE_FIRST = ("prompt_token_ids",)

TEXTS = ("a", "", "né", "日", "\U0001f600", '"\\', "\n")
LOGPROBS = (-0.5, -1e-7, -9999.0, 0.0)


@dataclass
class Sample:
    """One sample: its tokens, and what the engine reports at its end."""

    index: int
    finish: str
    tokens: list[int]
    ends: Json
    texts: list[str] | None = None
    logprobs: list[Json] | None = None
    masks: list[list[int]] | None = None

    def choice(self, start: int, end: int, *, last: bool) -> Json:
        """The choice for tokens ``start`` to ``end``."""
        kept = self.ends if last else dict.fromkeys(self.ends)
        content = None if self.logprobs is None else {"content": self.logprobs[start:end]}
        text = {} if self.texts is None else {"text": "".join(self.texts[start:end])}
        return {
            "index": self.index,
            "finish_reason": self.finish if last else None,
            "stop_reason": kept["stop_reason"],
            "token_ids": self.tokens[start:end],
            "routed_experts": kept["routed_experts"],
            "sampling_mask": None if not self.masks else self.masks[start:end] or None,
            "weight_versions": kept["weight_versions"],
            **text,
            "logprobs": content,
        }

    def steps(self) -> list[Json]:
        """A choice for each token; the last one finishes, but an abort comes after all of them."""
        count = len(self.tokens)
        if self.finish == "abort":
            steps = [self.choice(place, place + 1, last=False) for place in range(count)]
            return [*steps, self.choice(count, count, last=True)]
        return [self.choice(place, place + 1, last=place == count - 1) for place in range(count)]


@dataclass
class Asked:
    """A request, and its options that change the replies."""

    body: Json
    headers: Headers
    request_id: str
    prompt: list[int]
    include_usage: bool
    continuous: bool
    details: Json | None
    metrics: Json | None
    samples: list[Sample] = field(default_factory=list)

    def exchange(self, **replies: Any) -> ModelExchange:
        body = json.dumps(self.body).encode()
        return ModelExchange(body, self.headers, EVENTS, **replies, volatile=VOLATILE)

    def usage(self, tokens: int) -> Json:
        prompt = len(self.prompt)
        counts = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
        return {**counts, "prompt_tokens_details": self.details, "completion_tokens_details": None}

    def total_usage(self) -> Json:
        return self.usage(sum(len(sample.tokens) for sample in self.samples))

    @property
    def mode(self) -> str:
        return str(self.body.get("output_mode", "tokens"))

    def chunk(self, choice: Json, *, first: bool, generated: int) -> Json:
        prompt = {"prompt_token_ids": self.prompt} if first and self.body.get("return_token_ids") else {}
        return {
            "request_id": self.request_id,
            "usage": self.usage(generated) if self.continuous else None,
            **prompt,
            "output_mode": self.mode,
            "choices": [choice],
        }

    def usage_chunk(self) -> Json:
        """Nulls are omitted, at any depth."""
        usage: Json = {"request_id": self.request_id, "usage": without_nulls(self.total_usage())}
        metrics = {} if self.metrics is None else {"metrics": without_nulls(self.metrics)}
        return {**usage, **metrics, "output_mode": self.mode, "choices": []}

    def unary(self) -> Json:
        return {
            "request_id": self.request_id,
            "model": MODELS[self.body.get("model")],
            "created": 1795950877,
            "usage": self.total_usage(),
            **dict.fromkeys(("prompt_logprobs", "prompt_token_id_logprobs", "mm_placeholders")),
            "prompt_token_ids": self.prompt if self.body.get("return_token_ids") else None,
            "metrics": self.metrics,
            **dict.fromkeys(("kv_transfer_params", "ec_transfer_params")),
            "output_mode": self.mode,
            "choices": [sample.choice(0, len(sample.tokens), last=True) for sample in self.samples],
        }


class VllmModel:
    """The engine behind ``POST /inference/v1/generate``."""

    worker = ModelWorker(INFO)

    @cached_property
    def format(self) -> AnyFormat:
        return load_formats()["vllm"]

    def exchanges(self) -> SearchStrategy[ModelExchange]:
        return exchanges()

    def merges(self, exchange: ModelExchange) -> SearchStrategy[tuple[bytes, ...]]:
        return merges(exchange.stream)


@st.composite
def exchanges(draw: DrawFn) -> ModelExchange:
    asked = draw(requests())
    chunks = draw(interleaved(asked))
    error = draw(st.none() | st.none() | st.sampled_from(ERRORS))
    if error is not None:
        return failed(asked, chunks[: draw(st.integers(0, len(chunks) - 1))], error)
    if asked.include_usage:
        chunks.append(asked.usage_chunk())
    reasons = tuple(sample.finish for sample in asked.samples)
    return asked.exchange(
        stream=(*map(event, chunks), DONE),
        unary_head=ReplyHead(200, [DATE, (b"content-type", b"application/json")]),
        unary=compact(asked.unary()),
        tokens=sum(len(sample.tokens) for sample in asked.samples),
        prompt_tokens=len(asked.prompt) if asked.include_usage else None,
        finish_reasons=reasons,
        ending=ending(reasons),
    )


def failed(asked: Asked, chunks: list[Json], error: tuple[int, str, str]) -> ModelExchange:
    """An engine that fails: the first ``chunks`` were sent, the unary reply is only the error."""
    code, kind, message = error
    envelope = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    choices = [chunk["choices"][0] for chunk in chunks]
    return asked.exchange(
        stream=(*map(event, chunks), b"data: %b\n\n" % json.dumps(envelope).encode(), DONE),
        unary_head=ReplyHead(code, [DATE, (b"content-type", b"application/json")]),
        unary=compact(envelope),
        tokens=sum(len(choice["token_ids"]) for choice in choices),
        prompt_tokens=None,
        finish_reasons=tuple(reason for choice in choices if (reason := choice["finish_reason"])),
        ending=Ending.ERROR_EVENT,
    )


def ending(reasons: Sequence[str]) -> Ending:
    """One ending for all samples; an abort of any is an abort of the exchange."""
    if "abort" in reasons:
        return Ending.CLIENT_ABORT
    return ENDINGS[reasons[0]] if len(set(reasons)) == 1 else Ending.OTHER


@st.composite
def requests(draw: DrawFn) -> Asked:
    count = draw(st.sampled_from((1, 1, 2)))
    prompt = draw(st.lists(st.integers(0, 511), min_size=1, max_size=4))
    sampling: Json = {"n": count} if count > 1 or draw(st.booleans()) else {}
    if draw(st.booleans()):
        sampling["logprobs"] = draw(st.integers(0, 2))
    body: Json = {"token_ids": prompt, "sampling_params": sampling, "stream": True}
    body |= draw(OPTIONS)
    named = draw(st.none() | private_ids())
    headers: Headers = []
    if named is not None and draw(st.booleans()):
        headers = [(b"x-request-id", named.encode())]
    elif named is not None:
        body["request_id"] = named
    include, continuous = draw(st.sampled_from(((False, False), (True, False), (True, True))))
    if include:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": continuous}
    cached = {"cached_tokens": 2, "created_cache_tokens": None, "multimodal_tokens": None}
    asked = Asked(
        body=body,
        headers=headers,
        request_id=f"generate-tokens-{named or 'made-up'}",
        prompt=prompt,
        include_usage=include,
        continuous=continuous,
        details=draw(st.sampled_from((None, cached))) if include else None,
        metrics=draw(st.sampled_from((None, DRAFTS))) if include and count == 1 else None,
    )
    asked.samples = [draw(samples(index, asked)) for index in range(count)]
    return asked


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(sorted(name for name in MODELS if name is not None)),
        "return_token_ids": st.booleans(),
        "output_mode": st.sampled_from(("tokens", "text")),
        "priority": st.integers(-3, 3),
        "unknown": st.just({"deep": [1, 2.50]}),
    },
)


@st.composite
def samples(draw: DrawFn, index: int, asked: Asked) -> Sample:
    finish = draw(st.sampled_from(sorted(ENDINGS)))
    tokens = draw(st.lists(st.integers(0, 511), min_size=0 if finish == "abort" else 1, max_size=3))
    size = len(tokens)
    top = asked.body["sampling_params"].get("logprobs")
    return Sample(
        index=index,
        finish=finish,
        tokens=tokens,
        ends=draw(ends(finish, size)),
        texts=[TEXTS[token % len(TEXTS)] for token in tokens] if asked.mode == "text" else None,
        logprobs=None if top is None else [entry(token, top) for token in tokens],
        masks=[[token, token + 1] for token in tokens] if draw(st.booleans()) else None,
    )


def entry(token: int, top: int) -> Json:
    """A token's logprob, and those of the likeliest beside it."""
    best = [
        {"token_id": token + place, "logprob": LOGPROBS[(token + place) % len(LOGPROBS)], "rank": place + 1}
        for place in range(top + 1)
    ]
    return {**best[0], "top_logprobs": best}


@st.composite
def ends(draw: DrawFn, finish: str, size: int) -> Json:
    complete: Json = {
        "stop_reason": draw(st.sampled_from((None, 2, "w"))) if finish == "stop" else None,
        # Without slashes: in a reply with an error status they would look like a path, which is cut.
        "routed_experts": base64.b64encode(draw(st.binary(min_size=12, max_size=24)), b"+0").decode(),
        "weight_versions": [{"version": "default", "start": 0, "end": size}],
    }
    return complete | dict.fromkeys(draw(st.sampled_from(((), ("routed_experts",), tuple(complete)))))


@st.composite
def interleaved(draw: DrawFn, asked: Asked) -> list[Json]:
    """The chunks of all samples, in order for each sample."""
    waiting = [sample.steps() for sample in asked.samples]
    turns = [index for index, steps in enumerate(waiting) for _ in steps]
    generated = [0] * len(waiting)
    chunks: list[Json] = []
    for index in draw(st.permutations(turns)) if len(waiting) > 1 else turns:
        choice = waiting[index].pop(0)
        generated[index] += len(choice["token_ids"])
        chunks.append(asked.chunk(choice, first=not chunks, generated=generated[index]))
    return chunks


@st.composite
def merges(draw: DrawFn, stream: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Queued neighbours become one event per sample."""
    groups: list[list[bytes]] = []
    for one in stream:
        mergeable = b'"choices":[{' in one
        if not groups or not mergeable or b'"choices":[{' not in groups[-1][-1] or draw(st.booleans()):
            groups.append([])
        groups[-1].append(one)
    return tuple(one for group in groups for one in (group if len(group) == 1 else merged(group)))


def merged(group: Iterable[bytes]) -> list[bytes]:
    by_index: dict[int, Json] = {}
    for one in group:
        chunk = json.loads(one[6:])
        index = chunk["choices"][0]["index"]
        # The engine may keep the order of the samples' first chunks; here it is that of their last, so that
        # they end in the order they did.
        by_index[index] = added(by_index.pop(index), chunk) if index in by_index else chunk
    return [event(chunk) for chunk in by_index.values()]


def added(one: Json, other: Json) -> Json:
    """Merge two chunks of one sample."""
    head, tail = one["choices"][0], other["choices"][0]
    tail["token_ids"] = head["token_ids"] + tail["token_ids"]
    if head["sampling_mask"] is not None:
        tail["sampling_mask"] = head["sampling_mask"] + (tail["sampling_mask"] or [])
    if "text" in tail:
        tail["text"] = head["text"] + tail["text"]
    if tail["logprobs"] is not None:
        tail["logprobs"]["content"] = head["logprobs"]["content"] + tail["logprobs"]["content"]
    return {**other, **{key: one[key] for key in FROM_THE_FIRST if key in one}}


def without_nulls(found: Json) -> Json:
    kept = {key: value for key, value in found.items() if value is not None}
    return {key: without_nulls(value) if isinstance(value, dict) else value for key, value in kept.items()}
