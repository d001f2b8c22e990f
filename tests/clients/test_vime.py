"""vime's training step works with the gateway as its router."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.sim import Reply, SimServer
from tests.clients.site import PAUSE, TOKENS, Site, at_work, at_work_in_all, calls, engines, seen
from tests.clients.vime import GENERATE, RENDER, SESSION, Vime

PROMPT = [432, 402, 5]


@asynccontextmanager
async def fleet(site: Site, count: int = 2, **knobs: float) -> AsyncIterator[tuple[Vime, list[SimServer]]]:
    async with Vime(site.url, count, pause=PAUSE) as vime, engines("vllm", count, **knobs) as sims:
        for sim in sims:
            await vime.register(sim.url)
        await site.ready(*sims)
        yield vime, sims


async def test_rollout_is_spread_and_every_body_arrives_as_it_was_written(site: Site) -> None:
    """Byte for byte, because this engine takes its id from a header; the session's header is forwarded."""
    async with fleet(site) as (vime, sims):
        assert await vime.workers() == [sim.url for sim in sims]
        samples = await asyncio.gather(*(vime.generate([*PROMPT, index], TOKENS) for index in range(16)))
        assert {(len(sample.tokens), sample.status) for sample in samples} == {(TOKENS, "length")}
        arrivals = seen(*sims)
        assert len(arrivals) == 16 and all(seen(sim) for sim in sims)
        assert len({arrival.header(SESSION) for arrival in arrivals}) == 16
        assert all(arrival.body.startswith(b'{"model":"sim","token_ids":[432,402,5,') for arrival in arrivals)
        assert vime.failures == []


async def test_images_are_rendered_and_generated_in_one_session(site: Site) -> None:
    """Both through the gateway; the engine gets the renderer's output."""
    features = {"mm_hashes": {"image": ["abc"]}, "kwargs_data": {"image": [None]}}
    rendered = {"model": "sim", "token_ids": PROMPT, "features": features}
    async with fleet(site, 1) as (vime, (sim,)):
        sim.behave(Reply(body=json.dumps(rendered).encode()), path=RENDER)
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        sample = await vime.look([{"role": "user", "content": [picture]}], TOKENS)
        assert len(sample.tokens) == TOKENS
        (render,), (generate,) = calls(sim, RENDER), seen(sim)
        assert render.header(SESSION) == generate.header(SESSION) is not None
        assert json.loads(generate.body)["features"] == features


async def test_rollout_is_aborted_around_the_router(site: Site) -> None:
    """Running requests end as aborted with their tokens."""
    async with fleet(site, token_delay=0.01) as (vime, sims):
        running = [asyncio.ensure_future(vime.generate(PROMPT, 5000)) for _ in range(4)]
        await at_work_in_all(4, *sims)
        await vime.abort_rollout(interval=PAUSE)
        assert {sample.status for sample in await asyncio.gather(*running)} == {"abort"}


async def test_requests_are_aborted_through_the_router_by_their_ids(site: Site) -> None:
    """Ids are spelled like the engine's; no other request is affected."""
    async with fleet(site, token_delay=0.02) as (vime, sims):

        async def named(name: str, tokens: int) -> Any:
            body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": tokens}}
            return await vime.post(f"{site.url}{GENERATE}", body, {"X-Request-Id": name})

        running = [asyncio.ensure_future(named(*one)) for one in (("sample-1", 5000), ("sample-2", 40))]
        await at_work(1, *sims)
        received = await vime.post(
            f"{site.url}/abort_requests", {"request_ids": ["generate-tokens-sample-1"]}
        )
        assert received["aborted"] == 1 and [row["error"] for row in received["results"]] == [None]
        aborted, kept = await asyncio.gather(*running)
        assert (aborted["choices"][0]["finish_reason"], len(kept["choices"][0]["token_ids"])) == ("abort", 40)


async def test_engine_that_leaves_finishes_what_it_has(site: Site) -> None:
    """The other engine gets all new requests."""
    async with fleet(site, token_delay=0.01) as (vime, sims):
        running = [asyncio.ensure_future(vime.generate(PROMPT, 40)) for _ in range(4)]
        await at_work_in_all(4, *sims)
        had = len(seen(sims[0]))
        await vime.leave(sims[0].url)
        assert len((await vime.generate(PROMPT, TOKENS)).tokens) == TOKENS
        assert {len(sample.tokens) for sample in await asyncio.gather(*running)} == {40}
        assert (len(seen(sims[0])), len(seen(sims[1])), vime.failures) == (had, 5 - had, [])
