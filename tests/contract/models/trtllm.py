"""A small model of TensorRT-LLM's completions endpoint, as a client sees it who gets token ids.

Two things are told as the gateway tells them. A failure has the status 500 without a stream, where the
engine answers 400 whatever it was. Samples of one prompt come when they have something new, where the engine
may repeat all of them at each step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ending, Headers, ReplyHead
from gateway.formats.trtllm import FORMAT
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.model import ModelExchange, ModelWorker, private_ids
from tests.contract.models.wire import DONE, EVENTS, JSON, compact, event

Json = dict[str, Any]

INFO = WorkerInfo("trtllm", "trtllm_completions_tokens", usable=True, models=("m",))
ENDINGS = {"stop": Ending.STOP, "length": Ending.LENGTH, "timeout": Ending.OTHER}
ENDINGS["cancelled"] = Ending.CLIENT_ABORT
HEAD = {"id": "cmpl-7", "object": "text_completion", "created": 1795950877, "model": "m"}
#: Made up for each reply.
VOLATILE = frozenset({"id", "created"})


@dataclass
class Sample:
    """One sample: its tokens, and what the engine reports of it."""

    index: int
    tokens: list[int]
    finish: str
    stop_reason: int | str | None
    logprobs: bool
    texts: bool

    def choice(self, start: int, end: int, *, last: bool) -> Json:
        """The choice for tokens ``start`` to ``end``; the offsets of log probabilities begin at 0 in each."""
        new = self.tokens[start:end]
        return {
            "index": self.index,
            "text": "".join(map(word, new)) if self.texts else "",
            "token_ids": None if self.texts else new,
            "logprobs": logprobs(new) if self.logprobs else None,
            "finish_reason": self.finish if last else None,
            "stop_reason": self.stop_reason if last else None,
            "avg_decoded_tokens_per_iter": 1.0,
        }

    def steps(self) -> list[Json]:
        count = len(self.tokens)
        return [self.choice(place, place + 1, last=place == count - 1) for place in range(count)]

    def unary(self) -> Json:
        unstreamed = {"context_logits": None, "disaggregated_params": None}
        return {**self.choice(0, len(self.tokens), last=True), **unstreamed}


@dataclass
class Asked:
    """A request, and its options that change the replies."""

    body: Json
    headers: Headers
    prompts: list[list[int]]
    include_usage: bool
    continuous: bool
    samples: list[Sample] = field(default_factory=list)

    @property
    def several(self) -> int:
        """The samples of each prompt."""
        return len(self.samples) // len(self.prompts)

    def of_prompt(self, number: int) -> list[Sample]:
        return self.samples[number * self.several :][: self.several]

    def usage(self, samples: list[Sample]) -> Json:
        prompts = {sample.index // self.several for sample in samples}
        prompt = sum(len(self.prompts[number]) for number in prompts)
        made = sum(len(sample.tokens) for sample in samples)
        cached = {"cached_tokens": len(prompts)}
        counts = {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}
        return {**counts, "prompt_tokens_details": cached}

    def exchange(self, **replies: Any) -> ModelExchange:
        unknown = frozenset() if self.include_usage else frozenset({"prompt_tokens_details"})
        return ModelExchange(
            json.dumps(self.body).encode(), self.headers, EVENTS, **replies, volatile=VOLATILE | unknown
        )


class TrtllmModel:
    """The engine behind ``POST /v1/completions``."""

    worker = ModelWorker(INFO)
    format: AnyFormat = FORMAT

    def exchanges(self) -> SearchStrategy[ModelExchange]:
        return exchanges()

    def merges(self, exchange: ModelExchange) -> SearchStrategy[tuple[bytes, ...]]:
        return st.just(exchange.stream)


@st.composite
def exchanges(draw: DrawFn) -> ModelExchange:
    asked = draw(requests())
    chunks: list[Json] = [{**HEAD, "choices": [choice], "usage": None} for choice in draw(interleaved(asked))]
    if asked.continuous:
        for chunk in chunks:
            chunk["usage"] = asked.usage([asked.samples[chunk["choices"][0]["index"]]])
    if draw(st.integers(0, 3)) == 0:
        return failed(asked, chunks[: draw(st.integers(0, len(chunks) - 1))])
    if asked.include_usage:
        usages = [asked.usage(asked.of_prompt(number)) for number in range(len(asked.prompts))]
        chunks += [{**HEAD, "choices": [], "usage": usage} for usage in usages]
    reasons = tuple(sample.finish for sample in asked.samples)
    unary = {**HEAD, "choices": [sample.unary() for sample in asked.samples]}
    ids: list[int] | None = [] if len(asked.prompts) > 1 else None
    return asked.exchange(
        stream=(*map(event, chunks), DONE),
        unary_head=JSON,
        unary=compact({**unary, "usage": asked.usage(asked.samples), "prompt_token_ids": ids}),
        tokens=sum(len(sample.tokens) for sample in asked.samples),
        prompt_tokens=sum(map(len, asked.prompts)) if asked.include_usage else None,
        finish_reasons=reasons,
        ending=ending(reasons),
    )


def failed(asked: Asked, chunks: list[Json]) -> ModelExchange:
    """An engine that fails: the first ``chunks`` were sent, the unary reply is only the error."""
    error = {"message": "CUDA error é", "type": "server_error"}
    choices = [chunk["choices"][0] for chunk in chunks]
    return asked.exchange(
        stream=(*map(event, chunks), event({"error": {**error, "code": None, "param": None}}), DONE),
        unary_head=ReplyHead(500, JSON.headers),
        unary=compact({"object": "error", **error, "param": None, "code": 500}),
        tokens=sum(len(choice["token_ids"] or ()) for choice in choices),
        prompt_tokens=None,
        finish_reasons=tuple(reason for choice in choices if (reason := choice["finish_reason"])),
        ending=Ending.ERROR_EVENT,
    )


def ending(reasons: tuple[str, ...]) -> Ending:
    if "cancelled" in reasons:
        return Ending.CLIENT_ABORT
    return ENDINGS[reasons[0]] if len(set(reasons)) == 1 else Ending.OTHER


@st.composite
def requests(draw: DrawFn) -> Asked:
    ids = st.lists(st.integers(0, 511), min_size=1, max_size=4)
    prompts = draw(st.lists(ids, min_size=1, max_size=2))
    count = draw(st.sampled_from((1, 1, 2)))
    include, continuous = draw(st.sampled_from(((False, False), (True, False), (True, True))))
    texts = include and draw(st.booleans())  # tokens in a stream of texts are counted by usage alone
    prompt: Any = prompts if len(prompts) > 1 else prompts[0]
    body: Json = {"model": "m", "prompt": prompt, "stream": True, "detokenize": texts, **draw(OPTIONS)}
    if count > 1:
        body["n"] = count
    if include:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": continuous}
    named = draw(st.none() | private_ids())
    headers: Headers = [] if named is None else [(b"x-request-id", named.encode())]
    asked = Asked(body, headers, prompts, include, continuous)
    asked.samples = [draw(samples(index, body)) for index in range(count * len(prompts))]
    return asked


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(1, 9),
        "logprobs": st.just(1),
        "priority": st.sampled_from((0.0, 0.25, 1.0)),
        "lora_request": st.just({"lora_name": "tuned", "lora_int_id": 1}),
    },
)


@st.composite
def samples(draw: DrawFn, index: int, body: Json) -> Sample:
    finish = draw(st.sampled_from(sorted(ENDINGS)))
    tokens = draw(st.lists(st.integers(0, 511), min_size=1, max_size=3))
    stop = draw(st.sampled_from((None, 2, "w"))) if finish == "stop" else None
    return Sample(index, tokens, finish, stop, "logprobs" in body, body["detokenize"])


@st.composite
def interleaved(draw: DrawFn, asked: Asked) -> list[Json]:
    """The choices of all samples, in order for each sample; the samples end in their order."""
    waiting = [sample.steps() for sample in asked.samples]
    early = [index for index, steps in enumerate(waiting) for _ in steps[:-1]]
    turns = [*(draw(st.permutations(early)) if len(waiting) > 1 else early), *range(len(waiting))]
    return [waiting[index].pop(0) for index in turns]


def word(token: int) -> str:
    return ("a", "", "né", '"\\')[token % 4]


def logprobs(tokens: list[int]) -> Json:
    texts = [word(token) for token in tokens]
    offsets = [sum(map(len, texts[1 : place + 1])) for place in range(len(texts))]
    values = [-0.5 - token / 8 for token in tokens]
    tops = [{text: value} for text, value in zip(texts, values, strict=True)]
    return {"text_offset": offsets, "token_logprobs": values, "tokens": texts, "top_logprobs": tops}
