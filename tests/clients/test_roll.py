"""ROLL works with the gateway as its router."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.sim import Reply, SimServer
from tests.clients.roll import Roll
from tests.clients.site import PAUSE, TOKENS, Site, at_work, engines, seen
from tests.support.gateway import eventually

PROMPT = [432, 402, 5]


@asynccontextmanager
async def fleet(site: Site, count: int = 2, **knobs: float) -> AsyncIterator[tuple[Roll, list[SimServer]]]:
    async with Roll(site.url) as roll, engines("sglang", count, **knobs) as sims:
        async with asyncio.timeout(5):
            await roll.start([sim.url for sim in sims], PAUSE)
        await site.ready(*sims)
        yield roll, sims


async def test_start_ends_once_the_list_is_what_is_expected(site: Site) -> None:
    """URLs are listed as they were written: with a different slash the client would wait for ever."""
    async with Roll(site.url) as roll, engines("sglang") as sims:
        urls = [sims[0].url, f"{sims[1].url}/"]
        async with asyncio.timeout(5):
            await roll.start(urls, PAUSE)
        assert [*(await site.workers())] == urls


async def test_samples_of_a_prompt_come_as_a_list(site: Site) -> None:
    """All from the one request that was sent, with the client's own id for a single output."""
    async with fleet(site) as (roll, sims):
        outputs = await roll.generate("rid-4", PROMPT, TOKENS, n=4)
        assert {len(output["output_ids"]) for output in outputs} == {TOKENS}
        (arrival,) = seen(*sims)
        assert json.loads(arrival.body)["sampling_params"]["n"] == 4
        (output,) = await roll.generate("rid-1", PROMPT, TOKENS)
        assert output["meta_info"]["id"] == "rid-1"


async def test_request_is_aborted_at_the_engines_by_its_own_id(site: Site) -> None:
    """An unused id reaches the engine unchanged, so that an abort sent directly finds it."""
    async with fleet(site, token_delay=0.01) as (roll, sims):
        running = [
            asyncio.ensure_future(roll.generate(rid, PROMPT, tokens))
            for rid, tokens in (("rid-a", 5000), ("rid-b", 60))
        ]
        await at_work(1, *sims)
        await roll.abort("rid-a", [sim.url for sim in sims])
        (aborted,), (kept,) = await asyncio.gather(*running)
        assert aborted["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(kept["output_ids"]) == 60


async def test_engine_is_taken_away_by_its_encoded_url(site: Site) -> None:
    """It drains, as its own report of its load tells the client, and is then no longer listed."""
    async with fleet(site, token_delay=0.01) as (roll, (leaving, staying)):
        running = [asyncio.ensure_future(roll.generate(f"r-{n}", PROMPT, 20)) for n in range(2)]
        await at_work(1, leaving, staying)
        await roll.stop(leaving.url)
        # ROLL's engines have this route; the simulated engine is of a later version.
        busy, idle = (Reply(body=b'[{"num_reqs":%d}]' % count) for count in (1, 0))
        leaving.behave(busy, idle, path="/get_load")
        await roll.drain(leaving.url, PAUSE)
        assert [len(output["output_ids"]) for (output,) in await asyncio.gather(*running)] == [20, 20]

        async def gone() -> bool:
            return [*(await site.workers())] == [staying.url]

        await eventually(gone)


async def test_burst_waits_for_a_place_in_its_own_small_pool(site: Site) -> None:
    """More requests than its hundred connections: all are answered without an error."""
    async with fleet(site) as (roll, sims):
        outputs = await asyncio.gather(*(roll.generate(f"b-{n}", PROMPT, TOKENS) for n in range(150)))
        assert sum(len(output) for output in outputs) == 150 == len(seen(*sims))
