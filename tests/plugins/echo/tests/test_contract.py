"""The sample format keeps the contract."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ending, ReplyHead
from gateway.formats.registry import load_formats
from gateway.formats.worker_contract import ProbeReply, WorkerInfo
from gateway.testing.contract import FormatContract
from gateway.testing.endpoint import EndpointContract
from gateway.testing.model import ModelExchange, ModelWorker, private_ids

WORDS = st.lists(st.sampled_from(("polly", "a", "cr\u00e4cker", '"\\')), max_size=5)
ENDINGS = {"end": Ending.STOP, "limit": Ending.LENGTH, "bored": Ending.OTHER}


@st.composite
def exchanges(draw: DrawFn) -> ModelExchange:
    text, words, id = draw(WORDS), draw(WORDS), draw(st.none() | private_ids())
    reason, fails = draw(st.sampled_from(sorted(ENDINGS))), draw(st.booleans())
    last: dict[str, Any] = {"id": id or "made-up", "prompt_words": len(text), "reason": reason}
    problem = {"problem": "out of breath", "status": 503}
    lines: list[dict[str, Any]] = [{"words": [word]} for word in words]
    lines.append(problem if fails else {"words": [], **last})
    return ModelExchange(
        body=json.dumps({"text": " ".join(text), "stream": True}).encode(),
        headers=[] if id is None else [(b"x-echo-id", id.encode())],
        stream_head=ReplyHead(200, [(b"content-type", b"application/x-ndjson")]),
        stream=tuple(json.dumps(line).encode() + b"\n" for line in lines),
        unary_head=ReplyHead(503 if fails else 200, [(b"content-type", b"application/json")]),
        unary=json.dumps(problem if fails else {"words": words, **last}).encode(),
        tokens=len(words),
        prompt_tokens=None if fails else len(text),
        finish_reasons=() if fails else (reason,),
        ending=Ending.ERROR_EVENT if fails else ENDINGS[reason],
    )


class EchoModel:
    """The server as its clients see it."""

    worker = ModelWorker(WorkerInfo("echo", "echo", usable=True, models=("parrot",)))

    @cached_property
    def format(self) -> AnyFormat:
        return load_formats()["echo"]

    def exchanges(self) -> SearchStrategy[ModelExchange]:
        return exchanges()


class TestEcho(FormatContract):
    model = EchoModel()


class TestEchoEndpoint(EndpointContract):
    model = EchoModel()
    path = "/echo"
    settings = {"generate_format": "sglang", "endpoint": ("echo",)}
    probes = {"/about-echo": ProbeReply(200, b"echo")}

    def abort_call(self, public: str) -> bytes:
        return json.dumps({"id": public}).encode()
