"""verl's HTTP parts work with the gateway. (Its rollouts call its engines without HTTP.)"""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from gateway.sim import Reply
from tests.clients.site import PAUSE, TOKENS, Site, calls, engines, seen
from tests.clients.verl import Adapter, RewardRouter
from tests.support.gateway import eventually

PROMPT = [432, 402, 5]
SAMPLING = {"max_new_tokens": TOKENS, "temperature": 1.0}


async def test_engines_come_and_go_by_query(site: Site) -> None:
    """Adding and removing are answered in JSON, also when they change nothing."""
    verl = Adapter(site.url)
    async with engines("sglang") as sims:
        for sim in (*sims, sims[0]):
            await verl.add(sim.url)
        await site.ready(*sims)
        assert len(await site.workers()) == 2
        for _ in range(2):
            await verl.remove(sims[0].url)

        async def gone() -> bool:
            return [*(await site.workers())] == [sims[1].url]

        await eventually(gone)
        await verl.remove(sims[0].url)


async def test_ties_do_not_all_go_to_the_first_engine(site: Site) -> None:
    """Consecutive requests find equal engines, and each engine gets some; each request has a new session."""
    verl = Adapter(site.url)
    async with site.engines("sglang", 3) as sims:
        for number in range(30):
            reply = await verl.generate(PROMPT, SAMPLING, rid=f"verl-{number}", image_data=None)
            assert reply["meta_info"]["id"] == f"verl-{number}"
        assert len(seen(*sims)) == 30 and all(seen(sim) for sim in sims)
        assert not any("image_data" in json.loads(arrival.body) for arrival in seen(*sims))


async def test_wrong_body_is_an_error_at_once(site: Site) -> None:
    """With the engine's own status; nothing is sent twice."""
    verl = Adapter(site.url, PAUSE)
    async with site.engines("sglang", 1) as (sim,):
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            await verl.generate(PROMPT, {"no_such_parameter": 1})
        assert len(seen(sim)) == 1


async def test_reward_models_are_reached_by_their_own_routes(site: Site) -> None:
    """Classification, scores and chat, with the engine's own replies."""
    router = RewardRouter(site.url)
    paths = ("/classify", "/v1/embeddings", "/v1/chat/completions", "/v1/score")
    async with site.engines("sglang", 1) as (sim,):
        assert await router.healthy()
        for path in paths:
            sim.behave(Reply(body=b'{"object": "list",  "data": []}'), path=path)
        replies = await asyncio.gather(
            *(router.pass_on("POST", path, {"model": "sim", "input": "good"}) for path in paths)
        )
        assert {reply.content for reply in replies} == {b'{"object": "list",  "data": []}'}
        assert [len(calls(sim, path)) for path in paths] == [1, 1, 1, 1]
        assert (await router.pass_on("GET", "/v1/models")).json()["data"][0]["id"] == "sim"
