"""A scripted client like ROLL: one router per cluster, and a start that waits for exactly its engines.

Owns: its calls and its checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote

from tests.clients.libraries import Framework, httpx_client, polled


class Roll(Framework):
    """ROLL: httpx with its defaults, but without a timeout; it retries nothing."""

    def __init__(self, router: str) -> None:
        super().__init__(router, httpx_client())

    async def start(self, engines: Collection[str], interval: float = 1.0) -> None:
        """Wait for the router, register ``engines``, and wait without limit until the router lists exactly
        them.
        """
        assert (await self.http.get(f"{self.base}/")).status_code in (200, 404)
        for url in engines:
            (await self.http.post(f"{self.base}/workers", json={"url": url})).raise_for_status()
        await polled(lambda: self._complete(set(engines)), interval)

    async def _complete(self, wanted: set[str]) -> bool:
        listed = (await self.http.get(f"{self.base}/workers")).raise_for_status().json()
        return {worker["url"] for worker in listed["workers"]} == wanted and listed["total"] == len(wanted)

    async def stop(self, url: str) -> None:
        (await self.http.delete(f"{self.base}/workers/{quote(url, safe='')}")).raise_for_status()

    async def generate(self, rid: str, ids: Sequence[int], tokens: int, *, n: int = 1) -> list[Any]:
        """Return one checked output per sample."""
        sampling = {
            "max_new_tokens": tokens,
            "temperature": 0.9,
            "top_p": 0.99,
            "top_k": 100,
            "stop_token_ids": [2],
            "repetition_penalty": 1.0,
            "n": n,
            "stop": None,
            "no_stop_trim": True,
        }
        body = {"rid": rid, "input_ids": list(ids), "sampling_params": sampling, "return_logprob": True}
        reply = (await self.http.post(f"{self.base}/generate", json=body)).raise_for_status().json()
        outputs = reply if n > 1 else [reply]
        assert len(outputs) == n
        for output in outputs:
            meta = output["meta_info"]
            assert len(meta["output_token_logprobs"]) == len(output["output_ids"])
            assert meta["finish_reason"]["type"] in ("stop", "length", "abort")
        return outputs

    async def abort(self, rid: str, engines: Collection[str]) -> None:
        """Send an abort to every engine, because the client does not know which one has the request."""
        calls = (self.http.post(f"{url}/abort_request", json={"rid": rid}) for url in engines)
        for response in await asyncio.gather(*calls):
            response.raise_for_status()

    async def drain(self, url: str, interval: float = 1.0) -> None:
        """Return once the engine reports no requests."""
        await polled(lambda: self._idle(url), interval)

    async def _idle(self, url: str) -> bool:
        loads = (await self.http.get(f"{url}/get_load")).raise_for_status().json()
        return not sum(load["num_reqs"] for load in loads)
