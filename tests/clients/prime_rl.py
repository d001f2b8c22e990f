"""A scripted client like prime-rl: verifiers' environments and their renderer over vLLM.

Owns: its calls and its checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import httpx

from tests.clients.libraries import Framework, compact

SESSION = "X-Session-ID"
#: The bytes that the renderer searches in a reply before it is parsed.
EXPERTS = b'"routed_experts":{"data":"'


class Rejected(Exception):
    """The turn cannot be used for training."""


class PrimeRL(Framework):
    """prime-rl. ``base`` ends in ``/v1``, as its SDK requires. It retries nothing."""

    def __init__(self, base: str, key: str = "EMPTY") -> None:
        headers = {
            "Accept": "application/json",
            "Authorization": f"Bearer {key}",
            "User-Agent": "AsyncOpenAI/Python 2.8.1",
            "X-Stainless-Lang": "python",
            "X-Stainless-Async": "async:asyncio",
            "X-Stainless-Retry-Count": "0",
        }
        limits = httpx.Limits(max_connections=1000, max_keepalive_connections=100)
        timeout = httpx.Timeout(None, connect=30)
        http = httpx.AsyncClient(
            headers=headers, limits=limits, timeout=timeout, trust_env=False, verify=False
        )
        super().__init__(base, http)
        self.root = self.base.removesuffix("/v1")

    async def healthy(self) -> bool:
        return (await self.http.get(f"{self.root}/health")).status_code == 200

    async def longest(self, model: str) -> int | None:
        """Return the longest sequence; None switches the client's check off."""
        cards = (await self.http.get(f"{self.base}/models")).raise_for_status().json()["data"]
        found: list[int | None] = [card.get("max_model_len") for card in cards if card["id"] == model]
        return found[0] if found else None

    async def turn(self, trace: str, ids: Sequence[int], tokens: int, **extra: Any) -> list[int]:
        """Return the tokens of one turn. Raises Rejected, or httpx.HTTPError for a lost rollout."""
        sampling = {
            "max_tokens": tokens,
            "stop_token_ids": [2],
            "logprobs": 1,
            "skip_special_tokens": False,
            "routed_experts_prompt_start": 0,
            **self.sampling,
        }
        reply = (
            await self._post(trace, {"token_ids": list(ids), "sampling_params": sampling, **extra})
        ).json()
        choice = reply["choices"][0]
        content = choice["logprobs"]["content"]
        if len(content) != len(choice["token_ids"]):
            raise Rejected("log probabilities are missing")
        for id, entry in zip(choice["token_ids"], content, strict=True):
            if (
                not math.isfinite(entry["logprob"])
                or entry.get("token", f"token_id:{id}") != f"token_id:{id}"
            ):
                raise Rejected(str(entry))
        return list(choice["token_ids"])

    async def experts(self, trace: str, ids: Sequence[int]) -> bytes:
        """Return the packed experts of a turn, cut out of the unparsed reply."""
        content = (await self._post(trace, {"token_ids": list(ids), "sampling_params": {}})).content
        start = content.find(EXPERTS)
        if start < 0:
            raise Rejected("they are not where they are looked for")
        start += len(EXPERTS)
        return content[start : content.index(b'"', start)]

    async def score(self, trace: str, ids: Sequence[int]) -> list[float]:
        sampling = {"prompt_logprobs": 1, "max_tokens": 1}
        reply = (await self._post(trace, {"token_ids": list(ids), "sampling_params": sampling})).json()
        rows = reply["prompt_logprobs"]
        assert rows[0] is None and len(rows) == len(ids)
        return [row[str(id)]["logprob"] for id, row in zip(ids[1:], rows[1:], strict=True)]

    async def finish(self, trace: str) -> int:
        response = await self.http.post(f"{self.root}/finish_session", params={"session_id": trace})
        return response.status_code

    async def _post(self, trace: str, body: dict[str, Any]) -> httpx.Response:
        content = compact({"model": self.model_name, **body})
        headers = {"Content-Type": "application/json", SESSION: trace}
        response = await self.http.post(
            f"{self.root}/inference/v1/generate", content=content, headers=headers
        )
        return response.raise_for_status()
