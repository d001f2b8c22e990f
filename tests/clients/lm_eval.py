"""Scripted clients for evaluation and load: lm-eval's model for SGLang, and SGLang's own load generator.

Owns: their calls and their checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx

from tests.clients.libraries import JSON, Framework, aiohttp_session, repeated, spaced


class LmEval(Framework):
    """lm-eval's model. ``url`` is that of the generate route. ``concurrent`` bounds its connections."""

    TRIES = 3

    def __init__(self, url: str, concurrent: int = 4, pause: float = 1.0) -> None:
        super().__init__(url, aiohttp_session(concurrent, total=300))
        self.pause = pause

    async def generate(self, prompts: Sequence[Sequence[int]] | Sequence[str], tokens: int) -> list[str]:
        """Return the texts for a batch, in its order."""
        sampling = {"max_new_tokens": tokens, "temperature": 0, "stop": ["\n\n"]}
        name = "text" if isinstance(prompts[0], str) else "input_ids"
        body = {name: list(prompts), "sampling_params": sampling}
        return [output["text"] for output in await self._post(body)]

    async def loglikelihood(
        self, prompts: Sequence[Sequence[int]], ends: Sequence[int]
    ) -> list[tuple[float, bool]]:
        """Return the log likelihood of the last ``ends`` tokens of each prompt, and True if they are the
        likeliest.
        """
        body = {
            "input_ids": [list(prompt) for prompt in prompts],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 1,
        }
        outputs = await self._post(body)
        assert len(outputs) == len(prompts)
        return [_likelihood(output["meta_info"], end) for output, end in zip(outputs, ends, strict=True)]

    async def _post(self, body: Any) -> Any:
        async def once() -> httpx.Response:
            return (await self.http.post(self.base, content=spaced(body), headers=JSON)).raise_for_status()

        return (await repeated(once, self.TRIES, self.pause, lambda _: True)).json()


def _likelihood(meta: Any, end: int) -> tuple[float, bool]:
    request = meta["input_token_logprobs"][-end:]
    best = meta["input_top_logprobs"][-end:]
    greedy = all(pair[1] == top[0][1] for pair, top in zip(request, best, strict=True))
    return sum(pair[0] for pair in request), greedy


class BenchServing(Framework):
    """SGLang's load generator: streams, each with its own connection."""

    def __init__(self, base: str) -> None:
        super().__init__(base, aiohttp_session(None, total=6 * 3600))

    async def model(self) -> str:
        cards = (await self.http.get(f"{self.base}/v1/models")).raise_for_status().json()["data"]
        return str(cards[0]["id"])

    async def flush(self) -> None:
        (await self.http.post(f"{self.base}/flush_cache")).raise_for_status()

    async def request(self, prompt: str, tokens: int) -> tuple[int, list[int]]:
        """Return the number of tokens at the end, and the numbers at each event."""
        body = {
            "text": prompt,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True},
            "stream": True,
            "lora_path": None,
            "return_logprob": False,
            "logprob_start_len": -1,
        }
        seen: list[int] = []
        url, content = f"{self.base}/generate", spaced(body)
        async with self.http.stream("POST", url, content=content, headers=JSON) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data:") and (data := line.removeprefix("data:").strip()) != "[DONE]":
                    seen.append(json.loads(data)["meta_info"]["completion_tokens"])
        return seen[-1], seen
