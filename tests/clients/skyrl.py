"""A scripted client like SkyRL: the data plane of a trainer over vLLM, with affinity by trajectory.

Owns: its calls, its retries, its checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from tests.clients.libraries import JSON, Framework, aiohttp_session, httpx_client, polled, spaced

SESSION = "X-Session-ID"


class Refused(Exception):
    """A JSON reply that is not a success, which is not retried."""


class SkyRL(Framework):
    """SkyRL. ``base`` is its proxy_url; its server_urls for control are the engines' own."""

    TRIES = 30

    def __init__(self, base: str, pause: float = 1.0) -> None:
        # Idle connections are closed before an engine's limit of five seconds.
        super().__init__(base, aiohttp_session(50_000, total=None, keep_alive=2.0))
        self.pause = pause
        self.broken = 0

    async def wait_for_health(self) -> None:
        await polled(self._healthy, self.pause)

    async def _healthy(self) -> bool:
        return (await self.http.get(f"{self.base}/health")).status_code == 200

    async def generate(
        self, trajectory: str, ids: Sequence[int], tokens: int, *, replay: bool = False, **extra: Any
    ) -> Any:
        """Return the first choice. With ``replay`` it includes the experts of each token."""
        path = "/skyrl/v1/generate" if replay else "/inference/v1/generate"
        sampling = {"max_tokens": tokens, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}
        body = {"model": self.model_name, "token_ids": list(ids), "sampling_params": sampling, **extra}
        choice = (await self.post(path, trajectory, body))["choices"][0]
        content = choice["logprobs"]["content"]
        assert len(content) == len(choice["token_ids"]) and choice["finish_reason"] is not None
        assert all(isinstance(entry["logprob"], float) for entry in content)
        return choice

    async def post(self, path: str, trajectory: str, body: Mapping[str, Any]) -> Any:
        """Return the reply. Retries lost connections, and bodies that are neither JSON nor a 4xx."""
        headers = {**JSON, SESSION: trajectory}
        for left in reversed(range(self.TRIES)):
            try:
                response = await self.http.post(f"{self.base}{path}", content=spaced(body), headers=headers)
                return _read(response)
            except (httpx.TransportError, json.JSONDecodeError):
                self.broken += 1
                if not left:
                    raise
                await asyncio.sleep(self.pause)
        raise AssertionError("there is at least one try")

    async def finish(self, trajectory: str) -> int:
        """Report the end of a trajectory, within ten seconds; the client ignores the reply."""
        response = await self.http.post(
            f"{self.base}/finish_session", params={"session_id": trajectory}, timeout=10
        )
        return response.status_code


def _read(response: httpx.Response) -> Any:
    try:
        body = response.json()
    except ValueError:
        if 400 <= response.status_code < 500:
            raise Refused(response.text) from None
        raise
    if response.status_code != 200:
        error = body.get("error") or {}  # SkyRL fails if this is a list or a string
        raise Refused(error.get("message", str(body)))
    return body


async def forward(base: str, body: Mapping[str, Any]) -> Any:
    """Forward a request of its other front end: httpx, five minutes, one retry on a network error."""
    async with httpx_client(read=300, connect=10) as client:
        for last in (False, True):
            try:
                return (await client.post(f"{base}/v1/completions", json=body)).raise_for_status().json()
            except httpx.TransportError:
                if last:
                    raise
    raise AssertionError("there are two tries")
