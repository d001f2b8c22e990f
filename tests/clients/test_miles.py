"""miles works with the gateway in each of its dialects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.sim import Reply, SimServer
from tests.clients.miles import Miles, SessionServer, Version, is_stale
from tests.clients.site import PAUSE, TOKENS, Site, at_work, calls, engines, seen
from tests.clients.slime import ROUTING_KEY
from tests.support.gateway import eventually

PROMPT = [432, 402, 5]


@asynccontextmanager
async def fleet(
    site: Site, count: int = 2, version: Version = (0, 3, 2), **knobs: float
) -> AsyncIterator[tuple[Miles, list[SimServer]]]:
    """Start miles with ``count`` engines, registered in its dialect and ready."""
    async with Miles(site.url, version, PAUSE) as miles, engines("sglang", count, **knobs) as sims:
        for sim in sims:
            await miles.register(sim.url)
        await site.ready(*sims)
        yield miles, sims


@pytest.mark.parametrize("version", [(0, 1, 9), (0, 2, 1), (0, 2, 4), (0, 3, 2)], ids=str)
async def test_engines_join_and_leave_in_the_dialect_of_any_router(site: Site, version: Version) -> None:
    """Engines are listed as they were registered; a removed one finishes its requests and is no longer
    listed.
    """
    async with fleet(site, version=version, token_delay=0.01) as (miles, sims):
        assert await miles.listed() == [sim.url for sim in sims]
        running = [asyncio.ensure_future(miles.generate(PROMPT, 20)) for _ in range(2)]
        await at_work(1, *sims)
        await miles.leave(sims[0].url)
        assert [len(sample.tokens) for sample in await asyncio.gather(*running)] == [20, 20]

        async def gone() -> bool:
            return await miles.listed() == [sims[1].url]

        await eventually(gone)
        assert miles.failures == []


async def test_ranks_of_a_server_are_workers_of_their_own(site: Site) -> None:
    """A worker is listed with its rank, which miles removes again; requests reach the server."""
    async with Miles(site.url) as miles, engines("sglang", 1) as (sim,):
        ranks = [f"{sim.url}@0", f"{sim.url}@1"]
        for url in ranks:
            await miles.register(url)
        assert await miles.listed() == ranks
        assert await miles.workers() == [sim.url]

        async def ready() -> bool:
            return {entry["state"] for entry in (await site.workers()).values()} == {"ready"}

        await eventually(ready)
        assert len((await miles.generate(PROMPT, TOKENS)).tokens) == TOKENS


async def test_key_of_a_sample_reaches_the_engine(site: Site) -> None:
    """The header keeps its name and its value; false and lists in the body are unchanged."""
    async with fleet(site, 1) as (miles, (sim,)):
        await miles.generate(PROMPT, TOKENS, key="sample-1", images=["data:image/png;base64,AAAA"])
        (arrival,) = seen(sim)
        assert arrival.header(ROUTING_KEY) == "sample-1"
        body = json.loads(arrival.body)
        assert (body["return_routed_experts"], body["return_indexer_topk"]) == (False, False)


async def test_samples_with_one_key_are_on_one_engine_until_it_dies(site: Site) -> None:
    """Then all of them continue on another engine, without a failure that miles would see."""
    async with fleet(site) as (miles, sims):
        keys = [f"sample-{number}" for number in range(12)]

        async def turns() -> list[set[str | None]]:
            await asyncio.gather(*(miles.generate(PROMPT, TOKENS, key=key) for key in keys for _ in range(3)))
            return [{arrival.header(ROUTING_KEY) for arrival in seen(sim)} for sim in sims]

        first, second = await turns()
        assert first | second == set(keys) and not first & second
        await sims[0].kill()
        assert (await turns())[1] == set(keys)
        assert miles.failures == []


async def test_adapter_is_chosen_by_its_path(site: Site) -> None:
    """Loaded at each engine directly."""
    async with fleet(site, enable_lora=True) as (miles, sims):
        for sim in sims:
            adapter = {"lora_name": "policy", "lora_path": "/ckpt/policy"}
            (await miles.http.post(f"{sim.url}/load_lora_adapter", json=adapter)).raise_for_status()
        samples = await asyncio.gather(*(miles.generate(PROMPT, TOKENS, lora="policy") for _ in range(4)))
        assert {len(sample.tokens) for sample in samples} == {TOKENS}
        assert miles.failures == []


async def test_log_probabilities_are_computed_again_by_a_prefill(site: Site) -> None:
    """A scoring request through the router."""
    async with fleet(site, 1) as (miles, _):
        assert len(await miles.recompute([*PROMPT, 9])) == len(PROMPT)


async def test_stale_samples_are_recognised_by_their_weight_version(site: Site) -> None:
    """The version is an integer, as the trainer set it."""
    async with fleet(site, 1) as (miles, (sim,)):
        version = {"new_version": "41", "abort_all_requests": False}
        (await miles.http.post(f"{sim.url}/update_weight_version", json=version)).raise_for_status()
        sample = await miles.generate(PROMPT, TOKENS)
        assert not is_stale(sample, now=42, most=1)
        assert is_stale(sample, now=43, most=1)


@pytest.mark.parametrize("version", [(0, 2, 1), (0, 3, 2)], ids=str)
async def test_abort_meets_no_dead_engine_in_the_list(site: Site, version: Version) -> None:
    """A dead engine is flagged in the list, or left out of the list that has no flag."""
    async with fleet(site, version=version, token_delay=0.01) as (miles, sims):
        await sims[0].kill()

        async def dead() -> bool:
            return str((await site.workers())[sims[0].url]["state"]) == "dead"

        await eventually(dead)
        if not miles.by_query:
            listed = await site.workers()
            assert [entry["is_healthy"] for entry in listed.values()] == [False, True]
            await miles.leave(sims[0].url)
        running = asyncio.ensure_future(miles.generate(PROMPT, 5000))
        await at_work(1, sims[1])
        await miles.abort()
        assert (await running).status == "abort"
        assert miles.failures == []


async def test_agents_chat_goes_on_under_the_key_of_their_session(site: Site) -> None:
    """With the agent's own headers, and with all that the engine adds to the reply."""
    reply = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "sim",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ok"},
                "finish_reason": "stop",
                "meta_info": {"output_token_logprobs": [[-0.25, 11, None], [-0.5, 2, None]]},
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
    async with fleet(site, 1) as (_, (sim,)), SessionServer(site.url) as server:
        sim.behave(Reply(body=json.dumps(reply).encode()), path="/v1/chat/completions")
        body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "logprobs": True}
        request = await server.chat("session-7", body, {"X-Agent": "a1", "Authorization": "Bearer agent"})
        assert request == reply
        (arrival,) = calls(sim, "/v1/chat/completions")
        assert json.loads(arrival.body) == body
        lines = [arrival.header(name) for name in (ROUTING_KEY, "X-Agent", "Authorization")]
        assert lines == ["session-7", "a1", "Bearer agent"]
