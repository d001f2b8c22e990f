"""A small model of a chat completions route, as a client sees it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ending
from gateway.formats.relayed import RelayedFormat
from gateway.formats.vllm import VllmFormat
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.model import ModelExchange, ModelWorker, private_ids
from tests.contract.models.wire import DONE, EVENTS, JSON

PATH = "/v1/chat/completions"
ENDINGS = {"stop": Ending.STOP, "length": Ending.LENGTH, "tool_calls": Ending.OTHER}


class RelayedModel:
    """An engine of another format, whose workers serve this route as well."""

    def __init__(self, capability: str) -> None:
        self.format: AnyFormat = RelayedFormat(PATH, capability, hosts=(VllmFormat(),))
        self.worker = ModelWorker(WorkerInfo("engine", capability, usable=True, models=("m",)), b"/base")

    def exchanges(self) -> SearchStrategy[ModelExchange]:
        return _exchanges()

    def merges(self, exchange: ModelExchange) -> SearchStrategy[tuple[bytes, ...]]:
        return st.just(exchange.stream)


@st.composite
def _exchanges(draw: DrawFn) -> ModelExchange:
    id = draw(private_ids())
    texts = draw(st.lists(st.sampled_from(["a", "né", "日", "\n\n", '"\\']), min_size=1, max_size=4))
    finish = draw(st.sampled_from(sorted(ENDINGS)))
    body = draw(st.sampled_from([b'{"model": "m", "stream": true}', b'{"stream":true,"messages":[]}']))
    usage = {"prompt_tokens": draw(st.integers(1, 9)), "completion_tokens": len(texts)}
    return ModelExchange(
        body=body,
        headers=[(b"content-type", b"application/json"), (b"x-request-id", id.encode())],
        stream_head=EVENTS,
        stream=tuple(_stream(id, texts, finish, usage)),
        unary_head=JSON,
        unary=_unary(id, texts, finish, usage),
        tokens=len(texts),
        prompt_tokens=usage["prompt_tokens"],
        finish_reasons=(finish,),
        ending=ENDINGS[finish],
    )


def _stream(id: str, texts: Sequence[str], finish: str, usage: dict[str, int]) -> list[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant"}, *({"content": text} for text in texts)]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    documents: list[dict[str, Any]] = [{"id": f"chatcmpl-{id}", "choices": [choice]} for choice in choices]
    documents.append({"id": f"chatcmpl-{id}", "choices": [], "usage": usage})
    events = [b"data: %b\n\n" % json.dumps(document).encode() for document in documents]
    return [*events, DONE]


def _unary(id: str, texts: Sequence[str], finish: str, usage: dict[str, int]) -> bytes:
    message = {"role": "assistant", "content": "".join(texts)}
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
    return json.dumps({"id": f"chatcmpl-{id}", "choices": [choice], "usage": usage}).encode()
