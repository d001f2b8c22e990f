"""Evaluations and load tests work with the gateway."""

from __future__ import annotations

import asyncio
import json

from tests.clients.lm_eval import BenchServing, LmEval
from tests.clients.site import TOKENS, Site, calls, seen

PROMPT = [432, 402, 5]


async def test_batch_of_ids_or_texts_is_answered_completely_and_in_order(site: Site) -> None:
    """A batch is one request to one engine; each output is that of its prompt alone."""
    async with LmEval(f"{site.url}/generate") as lm, site.engines("sglang") as sims:
        ids = [[*PROMPT, number] for number in range(8)]
        texts = await lm.generate(ids, TOKENS)
        assert len(seen(*sims)) == 1
        alone = [await lm.generate([prompt], TOKENS) for prompt in ids]
        assert texts == [text for (text,) in alone] and len(set(texts)) == 8
        assert len(await lm.generate(["one", "two", "three"], TOKENS)) == 3


async def test_likelihoods_come_with_the_batch(site: Site) -> None:
    """Of the prompts' own tokens and of the likeliest ones."""
    async with LmEval(f"{site.url}/generate") as lm, site.engines("sglang", 1) as (sim,):
        found = await lm.loglikelihood([[*PROMPT, 8], [*PROMPT, 9, 10]], [1, 2])
        assert [total < 0 for total, _ in found] == [True, True]


async def test_batches_run_side_by_side(site: Site) -> None:
    """As many at once as the client has connections, distributed over the engines."""
    async with LmEval(f"{site.url}/generate", 8) as lm, site.engines("sglang", token_delay=0.01) as sims:
        batches = [[[*PROMPT, number, index] for index in range(4)] for number in range(16)]
        texts = await asyncio.gather(*(lm.generate(batch, TOKENS) for batch in batches))
        assert {len(batch) for batch in texts} == {4}
        assert len(seen(*sims)) == 16 and all(len(seen(sim)) > 2 for sim in sims)


async def test_load_generator_flushes_all_caches_and_streams(site: Site) -> None:
    """Events arrive one by one, with the count of all tokens so far."""
    async with BenchServing(site.url) as bench, site.engines("sglang", token_delay=0.005) as sims:
        assert await bench.model() == "sim"
        await bench.flush()
        assert [len(calls(sim, "/flush_cache")) for sim in sims] == [1, 1]
        results = await asyncio.gather(*(bench.request(f"prompt {number}", 10) for number in range(20)))
        assert {total for total, _ in results} == {10}
        assert all(counts == sorted(counts) and len(counts) > 1 for _, counts in results)
        assert json.loads(seen(*sims)[0].body)["lora_path"] is None
