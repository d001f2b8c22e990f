"""A scripted client like slime: rollouts over SGLang with an external router.

Owns: its calls and its checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from tests.clients.libraries import Stubborn, aiohttp_session, httpx_client, polled, spaced

ROUTING_KEY = "X-SMG-Routing-Key"
#: Per engine, by default.
CONCURRENCY = 512
_SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "stop": None,
    "stop_token_ids": None,
    "skip_special_tokens": False,
    "no_stop_trim": True,
    "spaces_between_special_tokens": False,
}


@dataclass(frozen=True)
class Sample:
    """The parts of a reply that are kept. ``status`` is stop, length, abort or, for an unfinished one,
    pending.
    """

    tokens: list[int]
    logprobs: list[float]
    text: str
    status: str
    weight_version: str | None
    routed_experts: str | None = None


def sample_of(reply: Any, *, partial: bool = False) -> Sample:
    """Read a reply as slime does: tokens from the log probabilities, and an unknown finish reason is an
    error.

    ``partial``: an event, which may have no finish reason yet.
    """
    meta = reply["meta_info"]
    pairs = meta["output_token_logprobs"]
    finish = meta["finish_reason"]
    status = "going on" if partial and finish is None else finish["type"]
    assert status in ("stop", "length", "abort") or partial, status
    return Sample(
        [pair[1] for pair in pairs],
        [pair[0] for pair in pairs],
        reply["text"],
        status,
        meta.get("weight_version"),
        meta.get("routed_experts"),
    )


class Registering(Stubborn):
    """The registration of engines at the router, as slime and vime do it."""

    async def register(self, url: str, **more: Any) -> None:
        body = {"url": url, "worker_type": "regular", **more}
        (await self.http.post(f"{self.base}/workers", json=body)).raise_for_status()

    async def _listed(self) -> list[dict[str, Any]]:
        response = (await self.http.get(f"{self.base}/workers")).raise_for_status()
        listed: list[dict[str, Any]] = response.json()["workers"]
        return listed

    async def workers(self) -> list[str]:
        return [worker["url"] for worker in await self._listed()]

    async def leave(self, url: str) -> None:
        (id,) = [worker["id"] for worker in await self._listed() if worker["url"] == url]
        (await self.http.delete(f"{self.base}/workers/{id}")).raise_for_status()


class Slime(Registering):
    """slime. ``policy`` is its name for the router's policy; one policy sends a key per sample."""

    def __init__(
        self, router: str, engines: int = 1, *, policy: str = "cache_aware", pause: float = 1.0
    ) -> None:
        super().__init__(router, httpx_client(CONCURRENCY * engines), pause)
        self.keyed = policy == "consistent_hashing"

    def _headers(self) -> dict[str, str]:
        return {ROUTING_KEY: str(uuid.uuid4())} if self.keyed else {}

    def body(self, prompt: Sequence[int] | str, tokens: int, images: Sequence[str] = ()) -> dict[str, Any]:
        """Return a request with text and images, or with ids."""
        body: dict[str, Any] = {
            "sampling_params": {**_SAMPLING, **self.sampling, "max_new_tokens": tokens},
            "return_logprob": True,
        }
        if isinstance(prompt, str):
            return {**body, "text": prompt, "image_data": list(images)}
        return {**body, "input_ids": list(prompt)}

    async def generate(
        self, prompt: Sequence[int] | str, tokens: int, images: Sequence[str] = (), **extra: Any
    ) -> Sample:
        body = {**self.body(prompt, tokens, images), **extra}
        return sample_of(await self.post(f"{self.base}/generate", body, self._headers()))

    @asynccontextmanager
    async def stream(self, prompt: Sequence[int], tokens: int) -> AsyncIterator[AsyncIterator[Sample]]:
        """Yield events, each with all tokens so far; leaving the block closes the connection."""
        body = {**self.body(prompt, tokens), "stream": True}
        async with self.http.stream("POST", f"{self.base}/generate", json=body) as response:
            response.raise_for_status()
            yield _events(response)

    async def score(self, ids: Sequence[int]) -> list[float]:
        """Return a teacher's log probabilities of an existing text."""
        sampling = {"temperature": 0, "max_new_tokens": 0, "skip_special_tokens": False}
        body = {
            "input_ids": list(ids),
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        async with aiohttp_session() as teacher:
            response = await teacher.post(f"{self.base}/generate", content=spaced(body), headers=_JSON)
        pairs = response.raise_for_status().json()["meta_info"]["input_token_logprobs"]
        return [pair[0] for pair in pairs[1:]]

    async def turn(self, prompt: Sequence[int], tokens: int) -> Sample:
        """Run an agent's turn in its own session; when cancelled, abort it through the router."""
        rid = uuid.uuid4().hex
        body = {**self.body(prompt, tokens), "rid": rid}
        headers = {**_JSON, ROUTING_KEY: rid}
        async with aiohttp_session(total=None) as session:
            try:
                response = await session.post(f"{self.base}/generate", content=spaced(body), headers=headers)
            except asyncio.CancelledError:
                await self._abort(rid)
                raise
        return sample_of(response.raise_for_status().json())

    async def _abort(self, rid: str) -> None:
        try:
            async with aiohttp_session(total=5) as session:
                await session.post(f"{self.base}/abort_request", content=spaced({"rid": rid}), headers=_JSON)
        except httpx.HTTPError:
            pass  # slime regards the request as aborted

    async def abort_rollout(self, interval: float = 3.0) -> None:
        """Abort all requests at each worker that the router lists, directly, until nothing runs."""
        workers = await self.workers()
        await asyncio.gather(*(self.post(f"{url}/abort_request", {"abort_all": True}) for url in workers))
        for url in workers:
            await polled(partial(self._idle, url), interval)

    async def _idle(self, url: str) -> bool:
        response = await self.http.get(f"{url}/v1/loads", params={"include": "core"})
        loads = response.raise_for_status().json()["loads"]
        return not any(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)

    async def update_weights(self, version: str, model_path: str = "/ckpt/step-1") -> None:
        """Update the weights of each engine directly, as the trainer does."""
        loaded = {"model_path": model_path, "weight_version": version}
        for url in await self.workers():
            paused = await self.http.post(f"{url}/pause_generation", json={"mode": "abort"})
            paused.raise_for_status()
            (await self.http.post(f"{url}/update_weights_from_disk", json=loaded)).raise_for_status()
            (await self.http.get(f"{url}/flush_cache")).raise_for_status()
            (await self.http.post(f"{url}/continue_generation", json={})).raise_for_status()


_JSON = {"Content-Type": "application/json"}


async def _events(response: httpx.Response) -> AsyncIterator[Sample]:
    async for line in response.aiter_lines():
        data = line.removeprefix("data: ")
        if line.startswith("data: ") and data != "[DONE]":
            yield sample_of(json.loads(data), partial=True)
