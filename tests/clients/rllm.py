"""A scripted client like rllm, whose own gateway for agents uses this one as a worker.

Owns: its calls, its failed probes, its checks of a reply. Must never enter: a judgement of the gateway.
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
        """Probe the worker; return False after three failures in a row."""
        try:
            good = (await self.http.get(f"{self.base}/health", timeout=5)).status_code == 200
        except httpx.TransportError:
            good = False
        self.failures = 0 if good else self.failures + 1
        return self.failures < MAX_FAILURES

    async def chat(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """Return a turn with the ids and log probabilities that training needs."""
        asked = {**body, "return_token_ids": True, "logprobs": True}
        for last in (False, True):
            try:
                response = await self.http.post(
                    f"{self.base}/v1/chat/completions", json=asked, headers=headers
                )
                break
            except (httpx.RemoteProtocolError, httpx.ReadError):  # a connection that was closed while idle
                if last:
                    raise
        choice = response.raise_for_status().json()["choices"][0]
        assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
        return choice

    async def stream(self, body: Mapping[str, Any]) -> list[bytes]:
        """Yield the lines of a streamed turn, as they are forwarded to the agent."""
        asked = {**body, "stream": True, "return_token_ids": True}
        async with self.http.stream("POST", f"{self.base}/v1/chat/completions", json=asked) as response:
            response.raise_for_status()
            return [line.encode() async for line in response.aiter_lines() if line]
