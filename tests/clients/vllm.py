"""Scripted clients of vLLM's engines, one class for each framework.

Own: their calls, their retries and their checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from tests.clients.libraries import (
    NOTHING,
    Framework,
    Sample,
    aiohttp_session,
    httpx_client,
    polled,
    spaced,
    vllm_sample,
)

SESSION = "X-Session-ID"
GENERATE, RENDER = "/inference/v1/generate", "/v1/chat/completions/render"


class OnVllm(Framework):
    """What the frameworks have in common: ids in, ids out, a header for the session."""

    KIND = "vllm"
    KEY = SESSION
    keyed = True
    SAMPLING: Mapping[str, Any] = {"temperature": 1.0, "logprobs": 1, "skip_special_tokens": False}
    #: Other members of a request.
    MORE: Mapping[str, Any] = NOTHING

    async def generate(self, session: str, ids: Sequence[int], tokens: int, **more: Any) -> Sample:
        sampling = {"max_tokens": tokens, **self.SAMPLING, **self.sampling}
        body = {"model": self.model_name, "token_ids": list(ids), "sampling_params": sampling}
        return vllm_sample(await self.post(GENERATE, {**body, **self.MORE, **more}, self.key(session)))

    async def sample(self, ids: Sequence[int], tokens: int) -> Sample:
        return await self.generate(str(uuid.uuid4()), ids, tokens)

    async def look(self, content: Any, tokens: int) -> Sample:
        """Render a chat, which may have images, to ids and features, then generate, both in one session."""
        session = str(uuid.uuid4())
        chat = {"model": self.model_name, "messages": [{"role": "user", "content": content}]}
        rendered = await self.post(RENDER, chat, self.key(session))
        more = {"features": rendered["features"]}
        return await self.generate(session, rendered["token_ids"], tokens, **more)


class Vime(OnVllm):
    """vime, which retries every failure."""

    TRIES = 60
    keyed = False

    async def abort_rollout(self) -> None:
        """Abort all requests at the engines directly, until none has any."""
        workers = await self.listed()
        await asyncio.gather(*(self.post(f"{url}/abort_requests", {}) for url in workers))
        for url in workers:
            await polled(lambda url=url: self._idle(url))  # type: ignore[misc]

    async def _idle(self, url: str) -> bool:
        return not (await self.get(f"{url}/load", include_inflight="true"))["server_load"]

    async def named(self, name: str, ids: Sequence[int], tokens: int) -> Sample:
        """Send a request under an id of the client's."""
        sampling = {"max_tokens": tokens, **self.sampling}
        body = {"token_ids": list(ids), "sampling_params": {**sampling, "logprobs": 1}}
        return vllm_sample(await self.post(GENERATE, body, {"X-Request-Id": name}))


class PrimeRL(OnVllm):
    """prime-rl: verifiers' environments and their renderer. It retries nothing."""

    MORE: Mapping[str, Any] = {"cache_salt": "step-3", "priority": 2}
    SDK: Mapping[str, str] = {
        "Accept": "application/json",
        "Authorization": "Bearer engine-key",
        "User-Agent": "AsyncOpenAI/Python 2.8.1",
        "X-Stainless-Lang": "python",
        "X-Stainless-Retry-Count": "0",
    }
    #: The bytes that the renderer searches in a reply before it is parsed.
    EXPERTS = b'"routed_experts":{"data":"'

    def connect(self) -> httpx.AsyncClient:
        return httpx_client(1000, kept=100, headers=self.SDK, connect=30)

    async def longest(self, model: str) -> int | None:
        """Return the longest sequence; None switches the client's check off."""
        cards = (await self.get("/v1/models"))["data"]
        found: list[int | None] = [card.get("max_model_len") for card in cards if card["id"] == model]
        return found[0] if found else None

    async def experts(self, ids: Sequence[int]) -> bytes:
        """Return the packed experts of a turn, cut out of the unparsed reply."""
        response = await self.http.post(self.base + GENERATE, json={"token_ids": list(ids)})
        _, found, rest = response.content.partition(self.EXPERTS)
        assert found, "they are not where they are looked for"
        return rest.partition(b'"')[0]

    async def score(self, ids: Sequence[int]) -> list[float]:
        body = {"token_ids": list(ids), "sampling_params": {"prompt_logprobs": 1, "max_tokens": 1}}
        first, *rows = (await self.post(GENERATE, {"model": self.model_name, **body}))["prompt_logprobs"]
        assert first is None
        return [row[str(id)]["logprob"] for id, row in zip(ids[1:], rows, strict=True)]


class Refused(Exception):
    """A JSON reply that is not a success, which SkyRL does not retry."""


class SkyRL(OnVllm):
    """SkyRL. ``base`` is its proxy_url; its server_urls for control are the engines' own. It retries lost
    connections, and replies that are neither JSON nor a 4xx.
    """

    TRIES = 30
    writes = staticmethod(spaced)

    def connect(self) -> httpx.AsyncClient:
        # Idle connections are closed before an engine's limit of five seconds.
        return aiohttp_session(50_000, total=None, keep_alive=2.0)

    def again(self, error: httpx.HTTPError) -> bool:
        if isinstance(error, httpx.HTTPStatusError):
            try:
                fault = error.response.json().get("error") or {}  # SkyRL fails if this is a list or a string
            except json.JSONDecodeError:
                return error.response.status_code >= 500
            raise Refused(fault["message"]) from error
        return True

    async def finish(self, trajectory: str) -> int:
        """Report the end of a trajectory, within ten seconds; the client ignores the reply."""
        parameters = {"session_id": trajectory}
        response = await self.http.post(f"{self.base}/finish_session", params=parameters, timeout=10)
        return response.status_code


class TRL(OnVllm):
    """TRL: one base URL of a server for everything. Its threads write through requests, with urllib3's
    retries.
    """

    TRIES = 5
    keyed = False
    MORE: Mapping[str, Any] = {"request_id": None}
    writes = staticmethod(spaced)

    def connect(self) -> httpx.AsyncClient:
        headers = {"Accept-Encoding": "gzip, deflate", "User-Agent": "python-requests/2.32.5"}
        return httpx_client(64, headers=headers, read=30, connect=30)

    def again(self, error: httpx.HTTPError) -> bool:
        status = isinstance(error, httpx.HTTPStatusError) and error.response.status_code
        return status in (False, 500, 502, 503)

    async def generate(self, session: str, ids: Sequence[int], tokens: int, **more: Any) -> Sample:
        return await super().generate(session, ids, tokens, request_id=session, **more)

    async def complete(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Complete all prompts in one call; return the choices in their order."""
        body = {
            "model": self.model_name,
            "prompt": [list(prompt) for prompt in prompts],
            "max_tokens": tokens,
            "logprobs": 0,
            "return_token_ids": True,
        }
        choices = (await self.post("/v1/completions", body))["choices"]
        assert [choice["index"] for choice in choices] == list(range(len(prompts)))
        return [choice["token_ids"] for choice in choices]

    async def world_size(self) -> int:
        return int((await self.get("/get_world_size"))["world_size"])

    async def set_up_transfer(self) -> None:
        info = {"master_address": "10.0.0.1", "master_port": 29500, "rank_offset": 1, "world_size": 2}
        await self.post("/init_weight_transfer_engine", {"init_info": info})

    async def transfer(self, version: str) -> None:
        """Run one weight transfer, with the engine paused around it."""
        await self.post("/pause?mode=keep", {})
        await self.post("/start_weight_update", {"is_checkpoint_format": True})
        await self.post("/update_weights", {"update_info": {"names": ["w"], "shapes": [[2, 2]]}})
        await self.post("/finish_weight_update", {"weight_version": version})
        await self.post("/reset_prefix_cache", {})
        await self.post("/resume", {})


class Rllm(OnVllm):
    """rllm's own gateway for agents, with the gateway as its worker. A connection that was closed while idle
    is tried again.
    """

    TRIES = 2

    def again(self, error: httpx.HTTPError) -> bool:
        return isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
