"""A scripted client like NeMo-RL: SGLang behind an external router.

Owns: its calls and its checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

from tests.clients.libraries import Framework, httpx_client, polled, repeated


class NotListed(Exception):
    """The router did not list the engine in time, and the client gave it up."""


class NeMoRL(Framework):
    TRIES = 3

    def __init__(self, router: str, engines: int = 1, pause: float = 1.0) -> None:
        super().__init__(router, httpx_client(1024 * engines))
        self.pause = pause

    async def register(self, url: str, *, patience: float = 30.0, interval: float = 0.5) -> None:
        """Register an engine and poll the list for ``patience`` seconds. Raises NotListed."""
        body = {"url": url, "worker_type": "regular"}
        (await self.http.post(f"{self.base}/workers", json=body)).raise_for_status()
        try:
            async with asyncio.timeout(patience):
                await polled(lambda: self._knows(url), interval)
        except TimeoutError:
            raise NotListed(url) from None

    async def _knows(self, url: str) -> bool:
        return url in await self._listed()

    async def _listed(self) -> dict[str, str]:
        response = (await self.http.get(f"{self.base}/workers", timeout=5)).raise_for_status()
        return {worker["url"]: worker["id"] for worker in response.json()["workers"]}

    async def leave(self, url: str) -> None:
        id = (await self._listed())[url]
        (await self.http.delete(f"{self.base}/workers/{id}")).raise_for_status()

    async def generate(self, ids: Sequence[int], tokens: int) -> tuple[list[int], bool]:
        """Return the tokens, and True if they were cut by length."""
        sampling = {"max_new_tokens": tokens, "temperature": 1.0, "top_p": 1.0, **self.sampling}
        body = {"sampling_params": sampling, "return_logprob": True, "input_ids": list(ids)}

        async def once() -> httpx.Response:
            return (await self.http.post(f"{self.base}/generate", json=body)).raise_for_status()

        meta: Any = (await repeated(once, self.TRIES, self.pause, lambda _: True)).json()["meta_info"]
        tokens_made = [pair[1] for pair in meta["output_token_logprobs"]]
        return tokens_made, meta["finish_reason"]["type"] == "length"
