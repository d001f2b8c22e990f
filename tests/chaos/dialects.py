"""The requests and replies of the engines, by route, because one engine serves several.

Owns: paths, requests, replies, events, ids and aborts. Must never enter: sockets, or the time of a reply.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from gateway.formats.worker_contract import ProbeReply
from tests.contract import probes

_PREFIX = "generate-tokens-"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Engine:
    """An engine. ``aborted`` reads the ids from the body of an abort call; None means all."""

    abort_path: str
    probes: Mapping[str, ProbeReply]
    aborted: Callable[[bytes], list[str] | None]


@dataclass(frozen=True)
class Route:
    """A path of the engine ``kind``.

    ``prompt`` is a small request without ``stream``. ``reply`` and ``event`` return bytes for an id: a
    complete reply of so many tokens, or the n-th token of a stream; a finish reason ends it.
    """

    kind: str
    path: str
    prompt: Mapping[str, Any]
    reply: Callable[[str, int, str], bytes]
    event: Callable[[str, int, str | None], bytes]
    #: The member of a request that contains its id.
    member: str = "request_id"

    def question(self, *, stream: bool = False, **extra: object) -> dict[str, Any]:
        """Return a request with a unique body, because a body with which two workers died is refused."""
        return {**self.prompt, "stream": stream, "marker": uuid4().hex, **extra}

    def body(self, *, stream: bool = False, **extra: object) -> bytes:
        """Return such a request as bytes."""
        return json.dumps(self.question(stream=stream, **extra)).encode()

    def id_of(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        """Return the id that the engine uses for a request."""
        if self.path == "/generate":
            _, _, rest = body.rpartition(
                b'"rid"'
            )  # The body may have 100 MB, and parsing it would take too long.
            return rest.partition(b'"')[2].partition(b'"')[0].decode() if len(rest) < len(body) else ""
        return headers.get(b"x-request-id", b"").decode()


def sse(data: bytes) -> bytes:
    """Return one event of a stream."""
    return b"data: %b\n\n" % data


def _sglang(name: str, tokens: int, reason: str | None) -> bytes:
    ends = {"length": {"type": "length", "length": tokens}, "abort": {"type": "abort", "message": "aborted"}}
    meta = {
        "id": name,
        "finish_reason": None if reason is None else ends[reason],
        "prompt_tokens": 3,
        "completion_tokens": tokens,
        "cached_tokens": 0,
    }
    return json.dumps({"text": "t" * tokens, "output_ids": [*range(tokens)], "meta_info": meta}).encode()


def _sglang_aborted(body: bytes) -> list[str] | None:
    call = json.loads(body)
    return None if call.get("abort_all") else [call["rid"]]


def _vllm(name: str, tokens: list[int], reason: str | None, usage: Any) -> bytes:
    choice = {"index": 0, "finish_reason": reason, "stop_reason": None, "token_ids": tokens, "logprobs": None}
    return json.dumps({"request_id": _PREFIX + name, "usage": usage, "choices": [choice]}).encode()


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}


def _vllm_reply(name: str, tokens: int, reason: str) -> bytes:
    return _vllm(name, [*range(tokens)], reason, _usage(tokens))


def _vllm_aborted(body: bytes) -> list[str] | None:
    return [name.removeprefix(_PREFIX) for name in json.loads(body)["request_ids"]]


def _chat(name: str, tokens: int, reason: str | None) -> bytes:
    message = {"role": "assistant", "content": "word " * tokens}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return json.dumps(
        {"id": name, "object": "chat.completion", "choices": [choice], "usage": _usage(tokens)}
    ).encode()


def _chat_event(name: str, tokens: int, reason: str | None) -> bytes:
    choice = {"index": 0, "delta": {"content": "t"}, "finish_reason": reason}
    return json.dumps({"id": name, "object": "chat.completion.chunk", "choices": [choice]}).encode()


ENGINES = {
    "sglang": Engine("/abort_request", probes.SGLANG, _sglang_aborted),
    "vllm": Engine("/inference/v1/abort_requests", probes.VLLM, _vllm_aborted),
}
SGLANG = Route(
    kind="sglang",
    path="/generate",
    prompt={"input_ids": [1, 15043, 29892], "sampling_params": {"max_new_tokens": 3, "temperature": 0}},
    reply=_sglang,
    event=_sglang,
    member="rid",
)
VLLM = Route(
    kind="vllm",
    path="/inference/v1/generate",
    prompt={"token_ids": [1, 15043, 29892], "sampling_params": {"max_tokens": 3, "temperature": 0}},
    reply=_vllm_reply,
    event=lambda name, tokens, reason: _vllm(name, [tokens], reason, None),
)
_CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
SGLANG_CHAT = Route("sglang", "/v1/chat/completions", _CHAT, _chat, _chat_event)
VLLM_CHAT = Route("vllm", "/v1/chat/completions", _CHAT, _chat, _chat_event)
#: The two generate endpoints. ROUTES has two more routes, which are relayed without inspection.
GENERATE = (SGLANG, VLLM)
ROUTES = (SGLANG, VLLM, SGLANG_CHAT, VLLM_CHAT)


def named(route: Route) -> str:
    """Return the name of a route for pytest's ``ids``."""
    return f"{route.kind}-{route.path.rpartition('/')[2]}"
