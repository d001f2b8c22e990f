"""A scripted client like vime, which is similar to slime and uses vLLM.

Owns: its calls and its checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tests.clients.libraries import httpx_client, polled
from tests.clients.slime import CONCURRENCY, Registering, Sample

SESSION = "x-session-id"
GENERATE, RENDER = "/inference/v1/generate", "/v1/chat/completions/render"


class Vime(Registering):
    """vime. ``keyed``: its router's policy needs a session per sample."""

    def __init__(self, router: str, engines: int = 1, *, keyed: bool = True, pause: float = 1.0) -> None:
        super().__init__(router, httpx_client(CONCURRENCY * engines), pause)
        self.keyed = keyed

    async def generate(self, ids: Sequence[int], tokens: int) -> Sample:
        headers = self._session()
        body = {"model": self.model_name, "token_ids": list(ids), "sampling_params": self._sampling(tokens)}
        return vllm_sample(await self.post(f"{self.base}{GENERATE}", body, headers))

    async def look(self, messages: Sequence[Mapping[str, Any]], tokens: int) -> Sample:
        """Render a request with images to ids and features, then generate, both in one session."""
        headers = self._session()
        chat = {"model": self.model_name, "messages": list(messages)}
        rendered = await self.post(f"{self.base}{RENDER}", chat, headers)
        body = {**rendered, "sampling_params": self._sampling(tokens)}
        return vllm_sample(await self.post(f"{self.base}{GENERATE}", body, headers))

    async def abort_rollout(self, interval: float = 3.0) -> None:
        """Abort all requests at the engines directly, until none has any."""
        workers = await self.workers()
        await asyncio.gather(*(self.post(f"{url}/abort_requests", {}) for url in workers))
        for url in workers:
            await polled(partial(self._idle, url), interval)

    async def _idle(self, url: str) -> bool:
        response = await self.http.get(f"{url}/load", params={"include_inflight": "true"})
        return not response.raise_for_status().json()["server_load"]

    def _session(self) -> dict[str, str]:
        return {SESSION: str(uuid.uuid4())} if self.keyed else {}

    def _sampling(self, tokens: int) -> dict[str, Any]:
        return {
            "max_tokens": tokens,
            "temperature": 1.0,
            "top_p": 1.0,
            "logprobs": 1,
            "skip_special_tokens": False,
            "include_stop_str_in_output": True,
            **self.sampling,
        }


def vllm_sample(reply: Any) -> Sample:
    """Read a reply as vime does; a choice needs one log probability for each id."""
    choice = reply["choices"][0]
    logprobs = [entry["logprob"] for entry in (choice["logprobs"] or {"content": []})["content"]]
    assert len(logprobs) == len(choice["token_ids"])
    assert choice["finish_reason"] in ("stop", "length", "abort")
    experts, version = choice.get("routed_experts"), reply.get("weight_version")
    return Sample(choice["token_ids"], logprobs, "", choice["finish_reason"], version, experts)
