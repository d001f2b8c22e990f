"""SkyRL: the data plane of a trainer over vLLM, sticky by trajectory.

Owns: its calls, what it tries again, what it needs of a reply. Must never enter: a judgement of the gateway.
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
    """A JSON answer that is no success: not tried again."""


class SkyRL(Framework):
    """``base`` is its proxy_url; its server_urls for control are the engines' own."""

    TRIES = 30

    def __init__(self, base: str, pause: float = 1.0) -> None:
        # Idle connections are dropped before an engine's five seconds are over.
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
        """The first choice. ``replay``: with the experts that each token went to."""
        path = "/skyrl/v1/generate" if replay else "/inference/v1/generate"
        sampling = {"max_tokens": tokens, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}
        body = {"model": self.model_name, "token_ids": list(ids), "sampling_params": sampling, **extra}
        choice = (await self.post(path, trajectory, body))["choices"][0]
        content = choice["logprobs"]["content"]
        assert len(content) == len(choice["token_ids"]) and choice["finish_reason"] is not None
        assert all(isinstance(entry["logprob"], float) for entry in content)
        return choice

    async def post(self, path: str, trajectory: str, body: Mapping[str, Any]) -> Any:
        """The reply. Tried again: lost connections, and bodies that are no JSON and no 4xx."""
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
        """Best effort: it has ten seconds, and nobody looks at the answer."""
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
        error = body.get("error") or {}  # a list or a string here would be a crash of its
        raise Refused(error.get("message", str(body)))
    return body


async def forward(base: str, body: Mapping[str, Any]) -> Any:
    """What its other front end passes on: httpx, five minutes, one more try on a network error."""
    async with httpx_client(read=300, connect=10) as client:
        for last in (False, True):
            try:
                return (await client.post(f"{base}/v1/completions", json=body)).raise_for_status().json()
            except httpx.TransportError:
                if last:
                    raise
    raise AssertionError("there are two tries")
