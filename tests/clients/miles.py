"""A scripted client like miles, which behaves like slime and has three dialects for the router.

Owns: its calls and its checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from tests.clients.libraries import Framework, Stubborn, httpx_client
from tests.clients.slime import ROUTING_KEY, Sample, sample_of

Version = tuple[int, int, int]
#: The last router version with workers by query only, and the first that removes them by id.
QUERY_ONLY, BY_ID = (0, 2, 1), (0, 3, 0)


class Miles(Stubborn):
    """miles. ``router_version`` is that of its router package, which selects the dialect."""

    def __init__(self, router: str, router_version: Version = (0, 3, 2), pause: float = 1.0) -> None:
        super().__init__(router, httpx_client(1024), pause)
        self.by_query = router_version <= QUERY_ONLY
        self.by_id = router_version >= BY_ID

    # The fleet.

    async def register(self, url: str) -> None:
        if self.by_query:
            response = await self.http.post(f"{self.base}/add_worker?url={url}")
        else:
            response = await self.http.post(f"{self.base}/workers", json={"url": url})
        response.raise_for_status()

    async def listed(self) -> list[str]:
        """Return the URLs of the workers as the router spells them."""
        if self.by_query:
            response = (await self.http.get(f"{self.base}/list_workers")).raise_for_status()
            return list(response.json()["urls"])
        response = (await self.http.get(f"{self.base}/workers")).raise_for_status()
        return [worker["url"] for worker in response.json()["workers"]]

    async def workers(self) -> list[str]:
        """Return each server once, without the rank behind its URL."""
        return list(dict.fromkeys(_server(url) for url in await self.listed()))

    async def leave(self, url: str) -> None:
        if self.by_query:
            response = await self.http.post(f"{self.base}/remove_worker?url={url}")
        elif self.by_id:
            workers = (await self.http.get(f"{self.base}/workers")).json()["workers"]
            (id,) = [worker["id"] for worker in workers if worker["url"] == url]
            response = await self.http.delete(f"{self.base}/workers/{id}")
        else:
            response = await self.http.delete(f"{self.base}/workers/{quote(url, safe='')}")
        response.raise_for_status()

    # Rollouts.

    async def generate(
        self,
        ids: Sequence[int],
        tokens: int,
        *,
        key: str | None = None,
        images: Sequence[str] = (),
        lora: str | None = None,
    ) -> Sample:
        body: dict[str, Any] = {
            "input_ids": list(ids),
            "sampling_params": {
                "temperature": 1.0,
                "top_p": 1.0,
                "max_new_tokens": tokens,
                **self.sampling,
            },
            "return_logprob": True,
            "return_routed_experts": False,
            "return_indexer_topk": False,
        }
        if images:
            body["image_data"] = list(images)
        if lora is not None:
            body["lora_path"] = lora
        headers = {} if key is None else {ROUTING_KEY: key}
        return sample_of(await self.post(f"{self.base}/generate", body, headers))

    async def recompute(self, ids: Sequence[int]) -> list[float]:
        """Return the log probabilities of a sample under the current weights."""
        sampling = {"temperature": 0, "max_new_tokens": 0}
        body = {
            "input_ids": list(ids),
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        meta = (await self.post(f"{self.base}/generate", body))["meta_info"]
        return [pair[0] for pair in meta["input_token_logprobs"][1:]]

    async def abort(self) -> None:
        """Abort all requests at all workers. A listed worker that is dead would cost a minute of tries, and
        an error.
        """
        await asyncio.gather(
            *(self.post(f"{url}/abort_request", {"abort_all": True}) for url in await self.workers())
        )


def is_stale(sample: Sample, now: int, most: int) -> bool:
    """Return True if the sample is more than ``most`` versions old; versions are integers here."""
    assert sample.weight_version is not None
    return now - int(sample.weight_version) > most


class SessionServer(Framework):
    """miles' proxy for agents, which forwards their chat to the router with the session's key and all
    headers.
    """

    def __init__(self, router: str) -> None:
        super().__init__(router, httpx_client(1024))

    async def chat(self, session: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """Send one turn and check that it has one log probability for each token."""
        response = await self.http.post(
            f"{self.base}/v1/chat/completions", json=body, headers={**headers, ROUTING_KEY: session}
        )
        reply = response.raise_for_status().json()
        pairs = reply["choices"][0]["meta_info"]["output_token_logprobs"]
        assert len(pairs) == reply["usage"]["completion_tokens"]
        return reply


def _server(url: str) -> str:
    head, at, rank = url.rpartition("@")
    return head if at and rank.isdecimal() else url
