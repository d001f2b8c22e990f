"""prime-rl's rollouts work with the gateway."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence

import httpx
import pytest

from gateway.sim import Reply
from tests.clients.prime_rl import EXPERTS, SESSION, PrimeRL, Rejected
from tests.clients.site import TOKENS, Site, at_work, engines, seen

PROMPT = [432, 402, 5]


async def test_rollouts_that_come_too_early_are_held_and_none_is_lost(queueing_site: Site) -> None:
    """prime-rl retries nothing, so a refusal before the first engine is ready would lose a rollout."""
    site = queueing_site
    async with PrimeRL(f"{site.url}/v1") as prime, engines("vllm") as sims:
        assert await prime.healthy()
        turns = [asyncio.ensure_future(prime.turn(f"t-{n}", [*PROMPT, n], TOKENS)) for n in range(50)]
        await site.serve(*sims)
        assert {len(tokens) for tokens in await asyncio.gather(*turns)} == {TOKENS}
        assert len(seen(*sims)) == 50


async def test_headers_of_the_sdk_arrive_with_the_trace(site: Site) -> None:
    """The API key too, if the gateway has none of its own; salt and priority stay in the body."""
    async with PrimeRL(f"{site.url}/v1", "engine-key") as prime, site.engines("vllm", 1) as (sim,):
        await prime.turn("trace-1", PROMPT, TOKENS, cache_salt="step-3", priority=2)
        (arrival,) = seen(sim)
        names = (SESSION, "Authorization", "X-Stainless-Lang")
        assert [arrival.header(name) for name in names] == ["trace-1", "Bearer engine-key", "python"]
        assert arrival.body.startswith(
            b'{"model":"sim","token_ids":[432,402,5],"sampling_params":{"max_tokens"'
        )
        assert arrival.body.endswith(b'"cache_salt":"step-3","priority":2}')


async def test_context_length_of_the_model_is_reported(site: Site) -> None:
    """Under the name the model is served by, and nothing for another name."""
    async with PrimeRL(f"{site.url}/v1") as prime, site.engines("vllm", max_model_len=4096):
        assert await prime.longest("sim") == 4096
        assert await prime.longest("other") is None


def reply_with(content: Sequence[object], **choice: object) -> Reply:
    """Return a reply without blanks."""
    ids = list(range(7, 7 + len(content)))
    logprobs = {"content": content}
    filled = {"index": 0, "finish_reason": "stop", "token_ids": ids, "logprobs": logprobs, **choice}
    body = {"request_id": "generate-tokens-x", "choices": [filled]}
    return Reply(body=json.dumps(body, separators=(",", ":")).encode())


async def test_experts_are_found_in_the_bytes_of_a_reply(site: Site) -> None:
    """Megabytes of them, unchanged: no part of the reply is parsed and written again."""
    data = "abcd" * 1_000_000
    experts = {"data": data, "shape": [20_000, 4, 8], "dtype": "uint8"}
    async with PrimeRL(f"{site.url}/v1") as prime, site.engines("vllm", 1) as (sim,):
        scripted = reply_with([{"logprob": -0.5}], routed_experts=experts)
        assert EXPERTS in scripted.body
        sim.behave(scripted)
        assert await prime.experts("trace-1", PROMPT) == data.encode()


async def test_entries_are_checked_as_the_engine_wrote_them(site: Site) -> None:
    """Entries are named by their ids; an invalid number reaches the client, which rejects it."""
    good = [{"token": "token_id:7", "logprob": -0.5}, {"token": "token_id:8", "logprob": -1e-7}]
    async with PrimeRL(f"{site.url}/v1") as prime, site.engines("vllm", 1) as (sim,):
        sim.behave(
            reply_with(good),
            reply_with([{"token": "token_id:7", "logprob": math.nan}]),
            reply_with([{"token": "x", "logprob": -0.5}]),
        )
        assert await prime.turn("trace-1", PROMPT, 2) == [7, 8]
        for _ in range(2):
            with pytest.raises(Rejected):
                await prime.turn("trace-1", PROMPT, 1)


async def test_prompt_is_scored(site: Site) -> None:
    """Every id but the first; then the trace ends."""
    async with PrimeRL(f"{site.url}/v1") as prime, site.engines("vllm", 1) as (sim,):
        assert len(await prime.score("trace-1", [*PROMPT, 8, 9])) == 4
        assert await prime.finish("trace-1") == 200


async def test_rollout_that_is_given_up_ends_at_the_engine(site: Site) -> None:
    """Its connection is closed; the trace beside it continues."""
    async with PrimeRL(f"{site.url}/v1") as prime, site.engines("vllm", 1, token_delay=0.01) as (sim,):
        kept = asyncio.ensure_future(prime.turn("kept", PROMPT, 40))
        given_up = asyncio.ensure_future(prime.turn("given-up", PROMPT, 5000))
        await at_work(2, sim)
        given_up.cancel()
        with pytest.raises((asyncio.CancelledError, httpx.HTTPError)):
            await given_up
        await sim.aborted()
        assert len(await kept) == 40
        await sim.idle()
