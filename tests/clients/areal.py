"""A scripted client like AReaL, whose rollouts are interrupted by new weights and continue.

Owns: its calls and its checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from tests.clients.libraries import JSON, Framework, aiohttp_session, repeated, spaced

_UNSTARTED = "Abort before prefill"


class AReaL(Framework):
    """AReaL with the gateway as one of its servers, at ``address``. Each call opens a TCP connection."""

    TRIES = 3

    def __init__(self, address: str, pause: float = 1.0) -> None:
        super().__init__(address, aiohttp_session(None, total=3600, force_close=True))
        self.pause = pause

    async def rollout(self, prompt: Sequence[int], tokens: int, lora: str | None = None) -> list[int]:
        """Return tokens until the end or ``tokens``; an aborted request is continued."""
        made: list[int] = []
        while True:
            reply = await self._generate([*prompt, *made], tokens - len(made), lora)
            finish = reply["meta_info"]["finish_reason"]
            if finish["type"] != "abort" or not finish.get("message", "").startswith(_UNSTARTED):
                made += [pair[1] for pair in reply["meta_info"]["output_token_logprobs"]]
            if finish["type"] in ("stop", "length") or len(made) >= tokens:
                return made

    async def _generate(self, ids: Sequence[int], tokens: int, lora: str | None) -> Any:
        sampling = {
            "top_p": 1.0,
            "top_k": 1 << 20,
            "max_new_tokens": tokens,
            "temperature": 1.0,
            "stop_token_ids": [],
            "ignore_eos": True,
            "skip_special_tokens": False,
            "frequency_penalty": 0.0,
        }
        body: dict[str, Any] = {
            "input_ids": list(ids),
            "image_data": [],
            "sampling_params": sampling,
            "return_logprob": True,
            "stream": False,
        }
        if lora is not None:
            body["lora_path"] = lora
        return await self.call("/generate", body)

    async def call(self, path: str, body: Any) -> Any:
        """Send ``body``, up to three times on any error; check that the reply is declared as JSON, and return
        it.
        """

        async def once() -> httpx.Response:
            response = await self.http.post(f"{self.base}{path}", content=spaced(body), headers=JSON)
            return response.raise_for_status()

        response = await repeated(once, self.TRIES, self.pause, lambda _: True)
        assert response.headers["content-type"].partition(";")[0] == "application/json"
        return response.json()

    async def health(self) -> bool:
        return (await self.http.get(f"{self.base}/health")).status_code == 200

    async def update_weights(self, path: str, version: str) -> None:
        """Pause the server, load the weights and continue."""
        await self.call("/pause_generation", {})
        loaded = await self.call(
            "/update_weights_from_disk",
            {"model_path": path, "weight_version": version, "abort_all_requests": True},
        )
        assert loaded["success"]
        await self.call("/continue_generation", {})

    async def update_adapter(self, name: str, version: int) -> str:
        """Load a new version of an adapter under its own name, and unload the version before."""
        new = f"{name}-v{version}"
        await self.call("/load_lora_adapter", {"lora_name": new, "lora_path": f"/ckpt/{new}"})
        if version > 1:
            await self.call("/unload_lora_adapter", {"lora_name": f"{name}-v{version - 1}"})
        return new

    async def join_group(self, rank_offset: int) -> httpx.Response:
        """Set up a weight transfer between trainer and engines; each server has another offset."""
        body = {
            "master_address": "10.0.0.1",
            "master_port": 29500,
            "rank_offset": rank_offset,
            "world_size": 3,
            "group_name": "update",
            "backend": "nccl",
        }
        return await self.http.post(
            f"{self.base}/init_weights_update_group", content=spaced(body), headers=JSON
        )
