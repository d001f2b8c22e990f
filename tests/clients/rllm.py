"""rllm: its own gateway for agents, to which this one is a worker.

Owns: its calls, its strikes, what it needs of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from tests.clients.libraries import Framework, httpx_client

MAX_FAILURES = 3


class RllmGateway(Framework):
    def __init__(self, worker: str) -> None:
        super().__init__(worker, httpx_client(500))
        self.failures = 0

    async def probe(self) -> bool:
        """Whether the worker is still in; three failures in a row put it out."""
        try:
            good = (await self.http.get(f"{self.base}/health", timeout=5)).status_code == 200
        except httpx.TransportError:
            good = False
        self.failures = 0 if good else self.failures + 1
        return self.failures < MAX_FAILURES

    async def chat(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """A turn, with the ids and log probabilities that training needs."""
        asked = {**body, "return_token_ids": True, "logprobs": True}
        for last in (False, True):
            try:
                response = await self.http.post(
                    f"{self.base}/v1/chat/completions", json=asked, headers=headers
                )
                break
            except (httpx.RemoteProtocolError, httpx.ReadError):  # a socket that was closed while it was idle
                if last:
                    raise
        choice = response.raise_for_status().json()["choices"][0]
        assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
        return choice

    async def stream(self, body: Mapping[str, Any]) -> list[bytes]:
        """The lines of a streamed turn, as they are passed on to the agent."""
        asked = {**body, "stream": True, "return_token_ids": True}
        async with self.http.stream("POST", f"{self.base}/v1/chat/completions", json=asked) as response:
            response.raise_for_status()
            return [line.encode() async for line in response.aiter_lines() if line]
