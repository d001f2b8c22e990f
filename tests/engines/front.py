"""Requests to an engine directly and through the gateway, and the comparison of the two replies.

Owns: both engines' request and reply shapes as far as a comparison needs them. Must never enter: the product.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx

from tests.clients.site import PROMPT

Json = dict[str, Any]

#: The placeholder in a case for the id of the request.
ID = "an-id"

#: Members of an SGLang reply that differ between runs. ``cached_tokens`` depends on earlier requests.
_UNREPEATABLE = {"e2e_latency", "response_sent_to_client_ts", "cached_tokens", "cached_tokens_details"}
#: Ids made by the engine for samples of n > 1, or by the engine or the gateway for requests without an id.
_MADE = re.compile(r"[0-9a-f]{32}(_\d+)?")
#: Members that an incremental SGLang stream sends in pieces, and a cumulative one completely each time.
_PIECES = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")


@dataclass(frozen=True)
class Reply:
    """A complete reply, with ``ID`` in place of the id of its request."""

    status: int
    headers: httpx.Headers
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


@dataclass(frozen=True)
class Front:
    """An engine server, and a gateway that has it as a worker. ``kind`` is the way in which the server was
    started.
    """

    kind: str
    path: str
    direct: str
    through: str

    @property
    def url(self) -> str:
        """Return the engine's own URL, with which it is registered."""
        return self.direct

    def body(self, name: str, tokens: int, *, stream: bool, **more: object) -> Json:
        """Return a greedy request with the id ``name`` for exactly ``tokens`` tokens."""
        sampling = {"temperature": 0, "ignore_eos": True}
        if self.kind == "vllm":
            sampling["max_tokens"] = tokens
            body = {"request_id": name, "model": "tiny", "token_ids": PROMPT, "sampling_params": sampling}
        else:
            sampling["max_new_tokens"] = tokens
            body = {"rid": name, "input_ids": PROMPT, "sampling_params": sampling}
        return {**body, "stream": stream, **more}

    async def ask(
        self, client: httpx.AsyncClient, side: str, body: Json | bytes, method: str = "POST", **headers: str
    ) -> Reply:
        """Send ``body`` with a new id to ``side`` and return the complete reply.

        The id is new, because two seconds after the end of a stream SGLang aborts the request that has its id
        then.
        """
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        name = f"test-{uuid4().hex}"
        reply = await client.request(
            method,
            side + self.path,
            content=content.replace(ID.encode(), name.encode()),
            headers={"content-type": "application/json", **headers},
        )
        return Reply(reply.status_code, reply.headers, reply.content.replace(name.encode(), ID.encode()))

    async def both(self, client: httpx.AsyncClient, body: Json | bytes, **headers: str) -> list[Reply]:
        """Return the direct reply and the one through the gateway."""
        return [await self.ask(client, side, body, **headers) for side in (self.direct, self.through)]

    async def holds(self, count: int) -> None:
        """Return once the engine itself reports exactly ``count`` requests."""
        async with httpx.AsyncClient(trust_env=False) as client:
            assert await running_requests(client, self, count) == count

    async def running(self, client: httpx.AsyncClient) -> int:
        """Return the number of requests, queued ones included, that the engine itself reports."""
        if self.kind == "vllm":
            text = (await client.get(self.direct + "/metrics")).text
            found = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*?\} (\S+)", text, re.MULTILINE)
            assert len(found) == 2, text
            return int(sum(map(float, found)))
        loads = (await client.get(self.direct + "/v1/loads")).json()["loads"]
        return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)

    def abort(self, name: str) -> tuple[str, Json]:
        """Return URL and body of a client's abort of ``name``, through the gateway."""
        if self.kind == "vllm":
            return self.through + "/inference/v1/abort_requests", {"request_ids": [f"generate-tokens-{name}"]}
        return self.through + "/abort_request", {"rid": name}

    def public_id(self, reply: Json) -> str:
        """Return the id of a reply or an event as its client spelled it."""
        if self.kind == "vllm":
            return str(reply["request_id"]).removeprefix("generate-tokens-")
        return str(reply["meta_info"]["id"])

    def ends(self, reply: Json) -> list[Any]:
        """Return the finish reasons in a reply or event."""
        if self.kind == "vllm":
            return [choice["finish_reason"] for choice in reply["choices"]]
        reason = reply["meta_info"]["finish_reason"]
        return [reason and reason["type"]]

    def tokens(self, stream: list[Json]) -> int:
        """Return the number of tokens in a complete stream."""
        if self.kind == "vllm":
            return sum(len(choice["token_ids"]) for event in stream for choice in event["choices"])
        return int(stream[-1]["meta_info"]["completion_tokens"])

    def comparable(self, reply: Json | list[Json]) -> Any:
        """Return a unary reply without the members that differ between two runs."""
        if isinstance(reply, list):
            return [self.comparable(one) for one in reply]
        if self.kind == "vllm":
            return {key: value for key, value in reply.items() if key != "created"}
        return {**reply, "meta_info": _repeatable(reply["meta_info"])}

    def folded(self, stream: list[Json]) -> Any:
        """Return a complete stream's content, independent of its division into events."""
        return _fold_vllm(stream) if self.kind == "vllm" else self._fold_sglang(stream)

    def _fold_sglang(self, stream: list[Json]) -> dict[int, Json]:
        folded: dict[int, Json] = {}
        for event in stream:
            meta = _repeatable(event["meta_info"])
            event = {**event, "meta_info": meta}
            before = folded.get(event.get("index", 0))
            if before is not None and self.kind == "sglang-incremental":
                event["text"] = before["text"] + event["text"]
                event["output_ids"] = before["output_ids"] + event["output_ids"]
                for key in _PIECES:
                    if key in meta:
                        meta[key] = before["meta_info"][key] + meta[key]
            elif before is not None:
                grown = event["output_ids"]
                assert grown[: len(before["output_ids"])] == before["output_ids"], "a cumulative event shrank"
            folded[event.get("index", 0)] = event
        return dict(sorted(folded.items()))


def events(content: bytes) -> list[Json]:
    """Return the events of a stream, and check that each is ``data: {...}`` and the last ``data: [DONE]``."""
    *framed, rest = content.split(b"\n\n")
    assert rest == b"", f"bytes after the last event: {rest!r}"
    assert framed.pop() == b"data: [DONE]"
    assert all(frame.startswith(b"data: {") for frame in framed)
    return [json.loads(frame.removeprefix(b"data: ")) for frame in framed]


def shapes(stream: list[Json]) -> set[tuple[str, ...]]:
    """Return the keys, in order, of every kind of event in a stream; first and last events may have their
    own.
    """
    return {tuple(event) for event in stream}


async def running_requests(client: httpx.AsyncClient, front: Front, awaited: int, seconds: float = 10) -> int:
    """Return the number of requests at the engine: ``awaited`` once it has them, else the last count in
    ``seconds``.
    """
    count = await front.running(client)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while count != awaited:  # noqa: ASYNC110 - the engine has no event for it
                await asyncio.sleep(0.02)
                count = await front.running(client)
    return count


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll ``condition`` every 50 ms; return False if it does not become true within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _repeatable(meta: Mapping[str, Any]) -> Json:
    kept = {key: value for key, value in meta.items() if key not in _UNREPEATABLE}
    if _MADE.fullmatch(kept["id"]):
        kept["id"] = "made"
    return kept


def _fold_vllm(stream: list[Json]) -> Json:
    folded: Json = {"choices": {}, "usage": None, "ids": set()}
    for event in stream:
        folded["ids"].add(event["request_id"])
        folded["usage"] = event["usage"] or folded["usage"]
        for choice in event["choices"]:
            before = folded["choices"].get(choice["index"])
            if before is not None:
                choice["token_ids"] = before["token_ids"] + choice["token_ids"]
                if before["logprobs"] and choice["logprobs"]:
                    choice["logprobs"]["content"] = (
                        before["logprobs"]["content"] + choice["logprobs"]["content"]
                    )
            folded["choices"][choice["index"]] = choice
    return {**folded, "choices": sorted(folded["choices"].items())}
