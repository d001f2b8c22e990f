"""The requests and replies of the engines, by route, because one engine serves several."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from gateway.sim import Arrival
from tests.support.generate import KINDS, LIMIT, PROMPT

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Route:
    """A path of the engine ``kind``.

    ``prompt`` is a small request without ``stream``. ``reply`` and ``event`` return bytes for an id: a
    complete reply of so many tokens, or the n-th token of a stream; a finish reason ends it.
    """

    kind: str
    path: str
    prompt: Mapping[str, Any]
    reply: Callable[[str, int, str | None], bytes]
    event: Callable[[str, int, str | None], bytes]
    #: The member of a request that contains its id.
    member: str = "request_id"

    def question(self, *, stream: bool = False, **extra: object) -> dict[str, Any]:
        """Return a request with a unique body, because a body with which two workers died is refused."""
        return {**self.prompt, "stream": stream, "marker": uuid4().hex, **extra}

    def body(self, *, stream: bool = False, **extra: object) -> bytes:
        return json.dumps(self.question(stream=stream, **extra)).encode()

    def id_of(self, request: Arrival) -> str:
        """Return the id that the engine uses for a request, whose body may be too long to be parsed."""
        if self.member == "rid":
            _, found, rest = request.body.rpartition(b'"rid"')
            return rest.partition(b'"')[2].partition(b'"')[0].decode() if found else ""
        return request.header("x-request-id") or ""


def _sglang(name: str, tokens: int, reason: str | None) -> bytes:
    finish = reason and {"type": reason, "length": tokens, "message": reason}
    meta = {"id": name, "finish_reason": finish, "completion_tokens": tokens, **_COUNTS}
    return json.dumps({"text": "t" * tokens, "output_ids": [*range(tokens)], "meta_info": meta}).encode()


def _vllm(name: str, tokens: list[int], reason: str | None, usage: Any = None) -> bytes:
    choice = {"index": 0, "finish_reason": reason, "stop_reason": None, "token_ids": tokens, "logprobs": None}
    return json.dumps({"request_id": f"generate-tokens-{name}", "usage": usage, "choices": [choice]}).encode()


def _chat(name: str, kind: str, **choice: object) -> bytes:
    return json.dumps({"id": name, "object": kind, "choices": [{"index": 0, **choice}]}).encode()


def _chat_reply(name: str, tokens: int, reason: str | None) -> bytes:
    message = {"role": "assistant", "content": "word " * tokens}
    return _chat(name, "chat.completion", message=message, finish_reason=reason)


def _chat_event(name: str, tokens: int, reason: str | None) -> bytes:
    return _chat(name, "chat.completion.chunk", delta={"content": "t"}, finish_reason=reason)


def _prompt(kind: str) -> dict[str, Any]:
    return {PROMPT[kind]: [1, 15043, 29892], "sampling_params": {LIMIT[kind]: 3, "temperature": 0}}


_COUNTS = {"prompt_tokens": 3, "cached_tokens": 0}
_CHAT = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
SGLANG = Route("sglang", KINDS["sglang"], _prompt("sglang"), _sglang, _sglang, "rid")
VLLM = Route(
    "vllm",
    KINDS["vllm"],
    _prompt("vllm"),
    lambda name, tokens, reason: _vllm(
        name, [*range(tokens)], reason, {**_COUNTS, "completion_tokens": tokens}
    ),
    lambda name, tokens, reason: _vllm(name, [tokens], reason),
)
#: The two generate endpoints. ROUTES has two more routes, which are relayed without inspection.
GENERATE = (SGLANG, VLLM)
ROUTES = (
    *GENERATE,
    *(Route(kind, "/v1/chat/completions", _CHAT, _chat_reply, _chat_event) for kind in KINDS),
)


def named(route: Route) -> str:
    return f"{route.kind}-{route.path.rpartition('/')[2]}"
