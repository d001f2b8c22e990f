"""What frameworks need of the gateway, in front of SGLang and vLLM themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from scripts.engines import paths
from tests.clients.contract import ClientContract
from tests.clients.site import PROMPT, TOKENS, EnginesOf, Site
from tests.clients.vllm import RENDER, TRL, SkyRL


class TestRealEngines(ClientContract):
    @pytest.fixture
    def weights(self) -> Path:
        return paths.model()

    async def test_engines_other_routes_are_passed_on(self, site: Site, engines_of: EnginesOf) -> None:
        """Tokenisation both ways, a chat and its rendering."""
        await site.serve(*await engines_of("vllm", 1))
        async with SkyRL(site.url) as skyrl:
            words = {"model": "tiny", "prompt": "Hello world!"}
            tokens = (await skyrl.post("/tokenize", words))["tokens"]
            back = await skyrl.post("/detokenize", {"model": "tiny", "tokens": tokens})
            assert back["prompt"] == "Hello world!"
            chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
            assert (await skyrl.post("/v1/chat/completions", chat))["choices"]
            assert (await skyrl.post(RENDER, chat))["token_ids"]

    async def test_prompts_are_completed_and_chats_rendered(self, site: Site, engines_of: EnginesOf) -> None:
        """Prompts in one call, in their order; chats one by one, generated from what the engine renders."""
        await site.serve(*await engines_of("vllm", 1))
        async with TRL(site.url) as trl:
            outputs = await trl.complete([[*PROMPT, index] for index in range(3)], TOKENS)
            assert all(0 < len(output) <= TOKENS for output in outputs) and len(outputs) == 3
            looked = await asyncio.gather(*(trl.look(f"picture {number}", TOKENS) for number in range(4)))
            assert {len(sample.tokens) for sample in looked} == {TOKENS}
