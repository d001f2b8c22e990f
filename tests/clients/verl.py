"""A scripted client like verl: its HTTP adapter for engines, its router for reward models.

Owns: its calls and its checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from tests.clients.libraries import JSON, aiohttp_session, spaced


class Adapter:
    """verl's adapter: a session for each call; an error status is raised at once, a broken connection tried
    three times.
    """

    TRIES = 3

    def __init__(self, router: str, pause: float = 1.0) -> None:
        self.base = router.rstrip("/")
        self.pause = pause

    async def add(self, url: str) -> None:
        await self._post("/add_worker", params={"url": url})

    async def remove(self, url: str) -> None:
        await self._post("/remove_worker", params={"url": url})

    async def generate(
        self, ids: Sequence[int], sampling: Mapping[str, Any], *, rid: str | None = None, **options: Any
    ) -> Any:
        """Return the reply to a request without the members that are None."""
        body = {"input_ids": list(ids), "sampling_params": dict(sampling), "rid": rid, **options}
        reply = await self._post(
            "/generate", {key: value for key, value in body.items() if value is not None}
        )
        assert reply["meta_info"]["finish_reason"]["type"] in ("stop", "length", "abort")
        return reply

    async def _post(self, path: str, body: Any = None, params: Mapping[str, str] | None = None) -> Any:
        for left in reversed(range(self.TRIES)):
            try:
                async with aiohttp_session(500, total=60) as session:
                    response = await session.post(
                        f"{self.base}{path}", content=spaced(body or {}), headers=JSON, params=params
                    )
                    return response.raise_for_status().json()
            except httpx.TransportError:
                if not left:
                    raise
                await asyncio.sleep(self.pause)
        raise AssertionError("there is at least one try")


class RewardRouter:
    """A router that forwards every request to its address once that is healthy."""

    def __init__(self, base: str) -> None:
        self.base = base

    async def healthy(self) -> bool:
        async with aiohttp_session() as session:
            return (await session.get(f"{self.base}/health")).status_code == 200

    async def pass_on(self, method: str, path: str, body: Any = None) -> httpx.Response:
        content = None if body is None else spaced(body)
        async with aiohttp_session() as session:
            return await session.request(method, f"{self.base}{path}", content=content, headers=JSON)
