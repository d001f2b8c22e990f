"""Scripted clients of SGLang's engines, one class for each framework.

Own: their calls, their retries and their checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from tests.clients.libraries import (
    Framework,
    Sample,
    aiohttp_session,
    httpx_client,
    polled,
    sglang_sample,
    spaced,
)

ROUTING_KEY = "X-SMG-Routing-Key"


class Slime(Framework):
    """slime, which retries every failure, refusals included."""

    TRIES = 60
    KEY = ROUTING_KEY
    SAMPLING: Mapping[str, Any] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "stop": None,
        "stop_token_ids": None,
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }

    def body(self, prompt: Sequence[int] | str, tokens: int, images: Sequence[str] = ()) -> dict[str, Any]:
        """Return a request with text and images, or with ids."""
        sampling = {**self.SAMPLING, **self.sampling, "max_new_tokens": tokens}
        body = {"sampling_params": sampling, "return_logprob": True, "return_routed_experts": True}
        if isinstance(prompt, str):
            return {**body, "text": prompt, "image_data": list(images)}
        return {**body, "input_ids": list(prompt)}

    async def sample(self, ids: Sequence[int], tokens: int) -> Sample:
        key = self.key(str(uuid.uuid4()))
        return sglang_sample(await self.post("/generate", self.body(ids, tokens), key))

    async def stream(self, prompt: Sequence[int], tokens: int) -> AsyncIterator[int]:
        """Yield the number of tokens so far at each event."""
        async for line in self.lines("/generate", {**self.body(prompt, tokens), "stream": True}):
            if line != "data: [DONE]":
                yield len(json.loads(line.removeprefix("data: "))["meta_info"]["output_token_logprobs"])

    async def score(self, ids: Sequence[int]) -> list[float]:
        """Return the log probabilities of a text: a teacher's, or those under the current weights."""
        sampling = {"temperature": 0, "max_new_tokens": 0}
        body = {"input_ids": list(ids), "sampling_params": sampling, "return_logprob": True}
        reply = await self.post("/generate", {**body, "logprob_start_len": 0})
        return [pair[0] for pair in reply["meta_info"]["input_token_logprobs"][1:]]

    async def turn(self, prompt: Sequence[int], tokens: int) -> Sample:
        """Run an agent's turn under an id of its own; when cancelled, abort it through the router."""
        rid = uuid.uuid4().hex
        try:
            reply = await self.post(
                "/generate", {**self.body(prompt, tokens), "rid": rid}, {ROUTING_KEY: rid}
            )
        except asyncio.CancelledError:
            await self.post("/abort_request", {"rid": rid})
            raise
        return sglang_sample(reply)

    async def workers(self) -> list[str]:
        """Return each server once, without the rank behind its URL."""
        return list(dict.fromkeys(_server(url) for url in await self.listed()))

    async def abort_rollout(self) -> None:
        """Abort all requests at each listed worker, directly, until nothing runs. A listed worker that is
        dead would cost a minute of tries, and an error.
        """
        workers = await self.workers()
        await asyncio.gather(*(self.post(f"{url}/abort_request", {"abort_all": True}) for url in workers))
        for url in workers:
            await polled(lambda url=url: self._idle(url))  # type: ignore[misc]

    async def _idle(self, url: str) -> bool:
        loads = (await self.get(f"{url}/v1/loads", include="core"))["loads"]
        return not any(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)

    async def update_weights(self, version: str, model_path: str) -> None:
        """Update the weights of each engine directly, as the trainer does."""
        for url in await self.workers():
            await self.post(f"{url}/pause_generation", {"mode": "abort"})
            loaded = {"model_path": model_path, "weight_version": version}
            await self.post(f"{url}/update_weights_from_disk", loaded)
            await self.get(f"{url}/flush_cache")
            await self.post(f"{url}/continue_generation", {})


class Miles(Slime):
    """miles, which behaves like slime. It removes workers by their encoded URLs or by id, depending on the
    version of its router package.
    """

    async def leave(self, url: str) -> None:
        (await self.http.delete(f"{self.base}/workers/{quote(url, safe='')}")).raise_for_status()


class MilesByQuery(Miles):
    """miles with a router package that has workers by query only."""

    async def register(self, url: str, **more: Any) -> None:
        (await self.http.post(f"{self.base}/add_worker?url={url}")).raise_for_status()

    async def listed(self) -> list[str]:
        return list((await self.get("/list_workers"))["urls"])

    async def leave(self, url: str) -> None:
        (await self.http.post(f"{self.base}/remove_worker?url={url}")).raise_for_status()


class MilesSessions(Framework):
    """miles' proxy for agents, which forwards their chat to the router with the session's key and all
    headers.
    """

    async def chat(self, session: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        reply = await self.post("/v1/chat/completions", body, {**headers, ROUTING_KEY: session})
        pairs = reply["choices"][0]["meta_info"]["output_token_logprobs"]
        assert len(pairs) == reply["usage"]["completion_tokens"]
        return reply


class NeMoRL(Framework):
    TRIES = 3

    async def sample(self, ids: Sequence[int], tokens: int) -> Sample:
        sampling = {"max_new_tokens": tokens, "temperature": 1.0, "top_p": 1.0, **self.sampling}
        body = {"sampling_params": sampling, "return_logprob": True, "input_ids": list(ids)}
        return sglang_sample(await self.post("/generate", body))


class Roll(Framework):
    """ROLL: httpx with its small pool, but without a timeout; it retries nothing."""

    def connect(self) -> httpx.AsyncClient:
        return httpx_client()

    async def leave(self, url: str) -> None:
        (await self.http.delete(f"{self.base}/workers/{quote(url, safe='')}")).raise_for_status()

    async def generate(self, rid: str, ids: Sequence[int], tokens: int, *, n: int = 1) -> list[Sample]:
        """Return one sample of the prompt, or a list of ``n``."""
        sampling = {"max_new_tokens": tokens, "temperature": 0.9, "n": n, "stop": None, **self.sampling}
        body = {"rid": rid, "input_ids": list(ids), "sampling_params": sampling, "return_logprob": True}
        reply = await self.post("/generate", body)
        outputs = reply if n > 1 else [reply]
        assert len(outputs) == n > 1 or reply["meta_info"]["id"] == rid
        return [sglang_sample(output) for output in outputs]

    async def sample(self, ids: Sequence[int], tokens: int) -> Sample:
        (sample,) = await self.generate(uuid.uuid4().hex, ids, tokens)
        return sample

    async def abort(self, rid: str, engines: Sequence[str]) -> None:
        """Send an abort to every engine, because the client does not know which one has the request."""
        await asyncio.gather(*(self.post(f"{url}/abort_request", {"rid": rid}) for url in engines))


class Verl(Framework):
    """verl's adapter, with a connection for each call, and its router for reward models. An error status is
    raised at once, a broken connection tried three times.
    """

    TRIES = 3
    writes = staticmethod(spaced)

    def connect(self) -> httpx.AsyncClient:
        return aiohttp_session(500, total=60, keep_alive=0)

    def again(self, error: httpx.HTTPError) -> bool:
        return isinstance(error, httpx.TransportError)

    async def register(self, url: str, **more: Any) -> None:
        (await self.http.post(f"{self.base}/add_worker", params={"url": url})).raise_for_status().json()

    async def leave(self, url: str) -> None:
        (await self.http.post(f"{self.base}/remove_worker", params={"url": url})).raise_for_status().json()

    async def generate(self, ids: Sequence[int], **sampling: Any) -> Any:
        rid = uuid.uuid4().hex
        body = {"input_ids": list(ids), "sampling_params": sampling, "rid": rid, "return_logprob": True}
        reply = await self.post("/generate", body)
        assert reply["meta_info"]["id"] == rid
        return reply

    async def sample(self, ids: Sequence[int], tokens: int) -> Sample:
        return sglang_sample(await self.generate(ids, max_new_tokens=tokens, **self.sampling))


class Fatal(Exception):
    """An error that strands does not retry."""


class ContextFull(Exception):
    """The conversation is too long for the context."""


class Throttled(Exception):
    """The server was busy at the last try."""


class Strands(Framework):
    """strands-sglang: agents whose history is token ids."""

    TRIES = 60
    writes = staticmethod(spaced)
    #: Parts of a 400's text by which it recognises a full context.
    FULL = ("exceed", "too long", "maximum length", "context length")

    def connect(self) -> httpx.AsyncClient:
        return aiohttp_session(1000, total=900, connect=5, pool=5)

    async def sees_images(self) -> bool:
        """Return True if the model accepts images; any reply but a 200 means that it does not."""
        response = await self.http.get(f"{self.base}/model_info")
        return response.status_code == 200 and bool(response.json()["has_image_understanding"])

    async def sample(self, ids: Sequence[int], tokens: int) -> Sample:
        """Run a turn. Raises Fatal, ContextFull, Throttled or httpx.HTTPError."""
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": tokens, "skip_special_tokens": False, **self.sampling},
            "return_logprob": True,
            "logprob_start_len": None,
            "return_routed_experts": False,
            "image_data": None,
            "stream": False,
        }
        try:
            reply = await self.post("/generate", body)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (429, 503):
                raise Throttled(error.response.text) from error
            raise
        meta = reply["meta_info"]
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "e2e_latency"):
            assert isinstance(meta[name], int | float), name
        assert meta["completion_tokens"] == len(reply["output_ids"])
        return sglang_sample(reply)

    def again(self, error: httpx.HTTPError) -> bool:
        if isinstance(error, httpx.HTTPStatusError):
            status, text = error.response.status_code, error.response.text
            if status in (401, 403, 404):
                raise Fatal(text) from error
            if status == 400 and any(words in text.lower() for words in self.FULL):
                raise ContextFull(text) from error
        return True


class AReaL(Framework):
    """AReaL with the gateway as one of its servers. Each call opens a TCP connection."""

    TRIES = 3
    writes = staticmethod(spaced)
    UNSTARTED = "Abort before prefill"

    def connect(self) -> httpx.AsyncClient:
        return aiohttp_session(None, total=3600, force_close=True)

    async def rollout(self, prompt: Sequence[int], tokens: int, lora: str | None = None) -> list[int]:
        """Return tokens until the end or ``tokens``; an aborted request is continued."""
        made: list[int] = []
        while True:
            reply = await self._generate([*prompt, *made], tokens - len(made), lora)
            finish = reply["meta_info"]["finish_reason"]
            if finish["type"] != "abort" or not finish.get("message", "").startswith(self.UNSTARTED):
                made += sglang_sample(reply).tokens
            if finish["type"] in ("stop", "length") or len(made) >= tokens:
                return made

    async def sample(self, ids: Sequence[int], tokens: int) -> Sample:
        return sglang_sample(await self._generate(ids, tokens, None))

    async def _generate(self, ids: Sequence[int], tokens: int, lora: str | None) -> Any:
        sampling = {"top_k": 1 << 20, "max_new_tokens": tokens, "temperature": 1.0, **self.sampling}
        body = {"input_ids": list(ids), "image_data": [], "sampling_params": sampling, "return_logprob": True}
        return await self.post("/generate", body if lora is None else {**body, "lora_path": lora})

    async def update_weights(self, path: str, version: str) -> None:
        """Pause the server, load the weights and continue."""
        await self.post("/pause_generation", {})
        body = {"model_path": path, "weight_version": version, "abort_all_requests": True}
        assert (await self.post("/update_weights_from_disk", body))["success"]
        await self.post("/continue_generation", {})

    async def update_adapter(self, name: str, version: int) -> str:
        """Load a new version of an adapter under its own name, and unload the version before."""
        new = f"{name}-v{version}"
        await self.post("/load_lora_adapter", {"lora_name": new, "lora_path": f"/ckpt/{new}"})
        if version > 1:
            await self.post("/unload_lora_adapter", {"lora_name": f"{name}-v{version - 1}"})
        return new

    async def join_group(self) -> None:
        """Set up a weight transfer between trainer and engines; each server has another offset."""
        group = {"master_address": "10.0.0.1", "master_port": 29500, "rank_offset": 1, "world_size": 3}
        await self.post("/init_weights_update_group", {**group, "group_name": "update", "backend": "nccl"})


class LmEval(Framework):
    """lm-eval's model for SGLang, with few connections."""

    TRIES = 3
    writes = staticmethod(spaced)

    def connect(self) -> httpx.AsyncClient:
        return aiohttp_session(8)

    async def generate(self, prompts: Sequence[Sequence[int]] | Sequence[str], tokens: int) -> list[str]:
        """Return the texts for a batch, in its order."""
        sampling = {"max_new_tokens": tokens, "temperature": 0, "stop": ["\n\n"]}
        name = "text" if isinstance(prompts[0], str) else "input_ids"
        outputs = await self.post("/generate", {name: list(prompts), "sampling_params": sampling})
        return [output["text"] for output in outputs]

    async def sample(self, ids: Sequence[int], tokens: int) -> Sample:
        sampling = {"max_new_tokens": tokens, "temperature": 0, **self.sampling}
        body = {"input_ids": [list(ids)], "sampling_params": sampling, "return_logprob": True}
        (output,) = await self.post("/generate", body)
        return sglang_sample(output)

    async def score(self, ids: Sequence[int]) -> list[float]:
        """Return the log likelihood of each token but the first, which comes with that of the likeliest."""
        sampling = {"max_new_tokens": 1, "temperature": 0}
        body = {"input_ids": [list(ids)], "sampling_params": sampling, "return_logprob": True}
        (output,) = await self.post("/generate", {**body, "logprob_start_len": 0, "top_logprobs_num": 1})
        own, best = (output["meta_info"][f"input_{which}_logprobs"][1:] for which in ("token", "top"))
        assert all(pair[0] <= top[0][0] for pair, top in zip(own, best, strict=True))
        return [pair[0] for pair in own]


class BenchServing(Framework):
    """SGLang's load generator: streams, each with its own connection."""

    writes = staticmethod(spaced)

    def connect(self) -> httpx.AsyncClient:
        return aiohttp_session(None, total=6 * 3600)

    async def flush(self) -> None:
        (await self.http.post(f"{self.base}/flush_cache")).raise_for_status()

    async def counts(self, prompt: str, tokens: int) -> list[int]:
        """Return the number of tokens so far at each event of a stream."""
        sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
        body = {"text": prompt, "sampling_params": sampling, "stream": True, "lora_path": None}
        lines = [line.removeprefix("data:").strip() async for line in self.lines("/generate", body)]
        return [json.loads(line)["meta_info"]["completion_tokens"] for line in lines if line != "[DONE]"]


def _server(url: str) -> str:
    head, at, rank = url.rpartition("@")
    return head if at and rank.isdecimal() else url
