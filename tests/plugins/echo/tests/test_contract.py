"""The sample format keeps the contract."""

from __future__ import annotations

import base64
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

WORDS = st.lists(st.sampled_from(("polly", "wants", "a", "cr\u00e4cker", '"\\')), max_size=5)
IN_LINES = ReplyHead(200, [(b"content-type", b"application/x-ndjson")])


class EchoModel:
    """The server that the format speaks to, as far as a client can tell."""

    worker = ModelWorker(WorkerInfo("echo", "echo", usable=True, models=("parrot",)))

    @cached_property
    def format(self) -> AnyFormat:
        return load_formats()["echo"]

    def exchanges(self) -> SearchStrategy[ModelExchange]:
        return exchanges()

    def merges(self, exchange: ModelExchange) -> SearchStrategy[tuple[bytes, ...]]:
        *words, last = exchange.stream
        joints = st.lists(st.booleans(), min_size=len(words), max_size=len(words))
        return joints.map(lambda joined: (*merged(words, joined), last))


@st.composite
def exchanges(draw: DrawFn) -> ModelExchange:
    words, said = draw(WORDS), draw(WORDS)
    request: dict[str, Any] = {"say": " ".join(words), "lines": True}
    tag, tag_in_header = draw(st.none() | private_ids()), draw(st.booleans())
    if tag is not None and not tag_in_header:
        request["tag"] = tag
    last: dict[str, Any] = {"tag": tag or "made-up", "heard": len(words), "why": draw(WHYS)}
    if draw(st.booleans()):
        last["voice"] = base64.b64encode(draw(st.binary(min_size=12, max_size=40))).decode()
    status = draw(st.sampled_from((200, 200, 200, 503)))
    problem = {"problem": "out of breath"}
    end = last if status == 200 else problem | {"status": status}
    reply = {"said": said, **last} if status == 200 else problem
    return ModelExchange(
        body=json.dumps(request).encode(),
        headers=[(b"x-tag", tag.encode())] if tag is not None and tag_in_header else [],
        stream_head=IN_LINES,
        stream=tuple(line(item) for item in (*({"said": [word]} for word in said), end)),
        unary_head=ReplyHead(status, [(b"content-type", b"application/json")]),
        unary=json.dumps(reply | {"took": 0.5}).encode(),
        tokens=len(said),
        prompt_tokens=len(words) if status == 200 else None,
        finish_reasons=(last["why"],) if status == 200 else (),
        ending=ENDINGS[last["why"]] if status == 200 else Ending.ERROR_EVENT,
        volatile=frozenset({"took"}),
    )


ENDINGS = {"end": Ending.STOP, "enough": Ending.LENGTH, "bored": Ending.OTHER}
WHYS = st.sampled_from(sorted(ENDINGS))


def line(item: dict[str, Any]) -> bytes:
    return json.dumps(item).encode() + b"\n"


def merged(lines: list[bytes], joined: list[bool]) -> list[bytes]:
    """A server whose client reads slowly says several words in one line."""
    groups: list[list[str]] = []
    for item, to_last in zip(lines, joined, strict=True):
        if not groups or not to_last:
            groups.append([])
        groups[-1] += json.loads(item)["said"]
    return [line({"said": words}) for words in groups]


class TestEcho(FormatContract):
    model = EchoModel()


class TestEchoOnTheWire(EndpointContract):
    model = EchoModel()
    probes = {"/about-echo": ProbeReply(200, b"echo")}
