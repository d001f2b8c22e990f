"""NeMo-RL works with the gateway as its external router."""

from __future__ import annotations

import asyncio

from gateway.sim import Drop
from tests.clients.nemo_rl import NeMoRL
from tests.clients.site import PAUSE, TOKENS, Site, engines, seen
from tests.support.processes import free_port

PROMPT = [432, 402, 5]


async def test_engine_is_listed_at_the_first_look_even_while_it_loads(site: Site) -> None:
    """At once, although nothing may listen at its address yet."""
    async with NeMoRL(site.url, 3) as nemo, engines("sglang", start_up=30) as sims:
        nowhere = f"http://127.0.0.1:{free_port()}"
        for url in (*(sim.url for sim in sims), nowhere):
            await nemo.register(url, patience=2.0, interval=60.0)
        assert [*(await site.workers())] == [sims[0].url, sims[1].url, nowhere]
        await nemo.leave(nowhere)
        assert nowhere not in await site.workers()


async def test_rollout_is_spread_over_workers_and_complete(site: Site) -> None:
    """Many requests at once, each cut by length."""
    async with NeMoRL(site.url, 2) as nemo, engines("sglang") as sims:
        for sim in sims:
            await nemo.register(sim.url)
        await site.ready(*sims)
        made = await asyncio.gather(*(nemo.generate([*PROMPT, index], TOKENS) for index in range(32)))
        assert {(len(tokens), cut) for tokens, cut in made} == {(TOKENS, True)}
        assert len(seen(*sims)) == 32 and all(len(seen(sim)) > 4 for sim in sims)


async def test_second_try_is_the_clients_own(site: Site) -> None:
    """A broken reply is reported at once, and the client's retry is a new request."""
    async with NeMoRL(site.url, pause=PAUSE) as nemo, engines("sglang", 1) as (sim,):
        await nemo.register(sim.url)
        await site.ready(sim)
        sim.behave(Drop())
        tokens, _ = await nemo.generate(PROMPT, TOKENS)
        assert (len(tokens), len(seen(sim))) == (TOKENS, 2)
