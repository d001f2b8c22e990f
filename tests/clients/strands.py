"""A scripted client like strands-sglang: agents whose history is token ids.

Owns: its calls, its table of statuses, its checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from tests.clients.libraries import JSON, Framework, aiohttp_session, repeated, spaced

#: Parts of a 400's text by which the client recognises a full context.
_FULL = ("exceed", "too long", "maximum length", "context length")
_NEEDED = ("prompt_tokens", "completion_tokens", "cached_tokens", "e2e_latency")


class Fatal(Exception):
    """An error that is not retried."""


class ContextFull(Exception):
    """The conversation is too long for the context."""


class Throttled(Exception):
    """The server was busy at the last try."""


class Strands(Framework):
    TRIES = 60

    def __init__(self, base: str, pause: float = 1.0) -> None:
        super().__init__(base, aiohttp_session(1000, total=900, connect=5))
        self.pause = pause
        self.refused: list[int] = []

    async def healthy(self) -> bool:
        return (await self.http.get(f"{self.base}/health")).status_code == 200

    async def sees_images(self) -> bool:
        """Return True if the model accepts images; any reply but a 200 means that it does not."""
        response = await self.http.get(f"{self.base}/model_info")
        return response.status_code == 200 and bool(response.json()["has_image_understanding"])

    async def turn(self, history: Sequence[int], tokens: int, **extra: Any) -> Any:
        """Return the checked reply. Raises Fatal, ContextFull, Throttled or httpx.HTTPError."""
        body = {
            "input_ids": list(history),
            "sampling_params": {"max_new_tokens": tokens, "skip_special_tokens": False},
            "return_logprob": True,
            "logprob_start_len": None,
            "return_routed_experts": False,
            "routed_experts_start_len": 0,
            "image_data": None,
            "stream": False,
            **extra,
        }
        content = spaced(body)

        async def once() -> httpx.Response:
            response = await self.http.post(f"{self.base}/generate", content=content, headers=JSON)
            return response.raise_for_status()

        try:
            response = await repeated(once, self.TRIES, self.pause, self._again)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (429, 503):
                raise Throttled(error.response.text) from error
            raise
        return _checked(response.json())

    def _again(self, error: httpx.HTTPError) -> bool:
        if isinstance(error, httpx.HTTPStatusError):
            status, text = error.response.status_code, error.response.text
            self.refused.append(status)
            if status in (401, 403, 404):
                raise Fatal(text) from error
            if status == 400 and any(words in text.lower() for words in _FULL):
                raise ContextFull(text) from error
        return True


def _checked(reply: Any) -> Any:
    meta = reply["meta_info"]
    assert isinstance(reply["text"], str) and isinstance(meta["finish_reason"]["type"], str)
    for name in _NEEDED:
        assert isinstance(meta[name], int | float), name
    assert len(meta["output_token_logprobs"]) == len(reply["output_ids"]) == meta["completion_tokens"]
    return reply
