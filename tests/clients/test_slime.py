"""slime's training step works with the gateway as its router."""

from __future__ import annotations

import asyncio
import base64
import json
from array import array

import pytest

from gateway.sim import Reply
from tests.clients.site import PAUSE, TOKENS, Site, as_sent, at_work, at_work_in_all, engines, seen
from tests.clients.slime import ROUTING_KEY, Slime
from tests.support.gateway import until

PROMPT = [432, 402, 5]
PICTURE = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 16_000).decode()


async def test_engines_come_after_the_router_and_samples_wait_for_them(site: Site) -> None:
    """A sample before the first engine gets refusals that slime retries, and then its reply."""
    async with Slime(site.url, 2, pause=PAUSE) as slime, engines("sglang") as sims:
        early = asyncio.ensure_future(slime.generate(PROMPT, TOKENS))
        await until(lambda: bool(slime.failures))
        assert "503 Service Unavailable" in slime.failures[0]
        for sim in sims:
            await slime.register(sim.url)
        assert await slime.workers() == [sim.url for sim in sims]
        sample = await early
        assert (len(sample.tokens), len(sample.logprobs), sample.status) == (TOKENS, TOKENS, "length")


async def test_rollout_is_spread_and_every_body_arrives_as_it_was_written(site: Site) -> None:
    """With unknown keys, nulls and the key of each sample."""
    async with Slime(site.url, 2, policy="consistent_hashing") as slime, site.engines("sglang") as sims:
        extra = {"return_routed_experts": True}
        group = [slime.generate([*PROMPT, index], TOKENS, **extra) for index in range(16)]
        samples = await asyncio.gather(*group)
        assert {len(sample.tokens) for sample in samples} == {TOKENS}
        assert slime.failures == []
        arrivals = seen(*sims)
        assert len(arrivals) == 16 and all(seen(sim) for sim in sims)
        assert len({arrival.header(ROUTING_KEY) for arrival in arrivals}) == 16
        for arrival in arrivals:
            ids = json.loads(arrival.body)["input_ids"]
            sent = json.dumps({**slime.body(ids, TOKENS), **extra}, separators=(",", ":"))
            assert as_sent(arrival, sent.encode())


async def test_images_arrive_intact(site: Site) -> None:
    """Text and over ten megabytes of data URLs in place of ids."""
    async with Slime(site.url) as slime, site.engines("sglang", 1) as (sim,):
        sample = await slime.generate("what is this", TOKENS, [PICTURE, PICTURE])
        assert len(sample.tokens) == TOKENS
        (arrival,) = seen(sim)
        assert json.loads(arrival.body)["image_data"] == [PICTURE, PICTURE]


async def test_routed_experts_are_counted_exactly(site: Site) -> None:
    """The engine's base64 of one number for each token, layer and expert, megabytes of it, is unchanged."""
    layers, experts, length = 4, 8, 20_000
    numbers = array("i", range(length * layers * experts))
    meta = {
        "id": "x",
        "finish_reason": {"type": "stop", "matched": 2},
        "output_token_logprobs": [[-0.5, 7, None]],
        "routed_experts": base64.b64encode(numbers.tobytes()).decode(),
    }
    body = json.dumps({"text": "t", "output_ids": [7], "meta_info": meta}).encode()
    async with Slime(site.url) as slime, site.engines("sglang", 1) as (sim,):
        sim.behave(Reply(body=body))
        sample = await slime.generate(PROMPT, 1, return_routed_experts=True, routed_experts_start_len=0)
        assert sample.routed_experts is not None
        assert array("i", base64.b64decode(sample.routed_experts)) == numbers


async def test_stream_that_is_dropped_ends_at_the_engine(site: Site) -> None:
    """Closing the connection is the only way in which slime ends it."""
    async with Slime(site.url) as slime, site.engines("sglang", 1, token_delay=0.01) as (sim,):
        async with slime.stream(PROMPT, 5000) as events:
            lengths = [len((await anext(events)).tokens) for _ in range(4)]
        assert lengths == sorted(set(lengths))
        await sim.aborted()
        await sim.idle()


async def test_turn_of_an_agent_that_is_cancelled_is_aborted_through_the_router(site: Site) -> None:
    """By its id, at its engine; the turn beside it continues."""
    async with Slime(site.url) as slime, site.engines("sglang", token_delay=0.02) as sims:
        kept = asyncio.ensure_future(slime.turn(PROMPT, 20))
        dropped = asyncio.ensure_future(slime.turn(PROMPT, 5000))
        await at_work_in_all(2, *sims)
        dropped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dropped
        sample = await kept
        assert (sample.status, len(sample.tokens)) == ("length", 20)
        await asyncio.gather(*(sim.idle() for sim in sims))


async def test_rollout_is_aborted_around_the_router(site: Site) -> None:
    """The list has URLs that a client can call; running requests end as aborted, with their tokens."""
    async with Slime(site.url, pause=PAUSE) as slime, site.engines("sglang", token_delay=0.01) as sims:
        running = [asyncio.ensure_future(slime.generate(PROMPT, 5000)) for _ in range(4)]
        await at_work(2, *sims)
        await slime.abort_rollout(interval=PAUSE)
        assert {sample.status for sample in await asyncio.gather(*running)} == {"abort"}
        assert slime.failures == []


async def test_new_weights_show_in_samples(site: Site) -> None:
    """The engines are paused and updated directly, and stay in service."""
    async with Slime(site.url, pause=PAUSE) as slime, site.engines("sglang"):
        assert (await slime.generate(PROMPT, TOKENS)).weight_version == "default"
        await slime.update_weights("17")
        samples = await asyncio.gather(*(slime.generate(PROMPT, TOKENS) for _ in range(8)))
        assert {sample.weight_version for sample in samples} == {"17"}


async def test_engines_half_way_to_new_weights_still_serve_one_model(site: Site) -> None:
    """An engine's model is named by the path of its weights; in the fleet it keeps its name."""
    async with Slime(site.url, pause=PAUSE) as slime, engines("sglang") as sims:
        loaded = {"model_path": "/ckpt/step-1"}
        received = await slime.http.post(f"{sims[0].url}/update_weights_from_disk", json=loaded)
        assert received.json()["success"]
        cards = (await slime.http.get(f"{sims[0].url}/v1/models")).json()["data"]
        assert [card["id"] for card in cards] == ["/ckpt/step-1"]
        for sim in sims:
            await slime.register(sim.url)
        await site.ready(*sims)
        await asyncio.gather(*(slime.generate(PROMPT, TOKENS) for _ in range(8)))
        assert all(seen(sim) for sim in sims)
        models = (await slime.http.get(f"{site.url}/v1/models")).json()["data"]
        assert ([model["id"] for model in models], slime.failures) == (["sim"], [])


async def test_engine_that_leaves_finishes_what_it_has(site: Site) -> None:
    """The others get all new requests; no reply is cut, no request is sent twice."""
    async with Slime(site.url) as slime, site.engines("sglang", token_delay=0.01) as sims:
        running = [asyncio.ensure_future(slime.generate(PROMPT, 40)) for _ in range(4)]
        await at_work(2, *sims)
        await slime.leave(sims[0].url)
        later = await asyncio.gather(*(slime.generate(PROMPT, TOKENS) for _ in range(3)))
        samples = await asyncio.gather(*running)
        assert {len(sample.tokens) for sample in samples} == {40}
        assert {len(sample.tokens) for sample in later} == {TOKENS}
        assert (len(seen(sims[0])), len(seen(sims[1])), slime.failures) == (2, 5, [])
        assert await slime.workers() == [sims[1].url]


async def test_teacher_scores_what_is_there(site: Site) -> None:
    """No token is generated; each token of the prompt but the first has its log probability."""
    async with Slime(site.url) as slime, site.engines("sglang", 1) as (sim,):
        scores = await slime.score([*PROMPT, 8, 9])
        assert len(scores) == 4 and all(score <= 0 for score in scores)


async def test_prefill_worker_is_kept_with_its_port(site: Site) -> None:
    """Registered as a prefill worker, it is listed and gets no request alone."""
    async with Slime(site.url) as slime, engines("sglang", 2) as (prefill, regular):
        await slime.register(prefill.url, worker_type="prefill", bootstrap_port=8998)
        await slime.register(regular.url)
        await site.ready(regular)
        entry = (await site.workers())[prefill.url]
        assert (entry["worker_type"], entry["bootstrap_port"]) == ("prefill", 8998)
        await asyncio.gather(*(slime.generate(PROMPT, TOKENS) for _ in range(4)))
        assert (len(seen(prefill)), len(seen(regular))) == (0, 4)


async def test_metrics_of_all_engines_are_scraped_at_one_address(site: Site) -> None:
    """With the worker's URL as a label; an unreachable engine only lacks its own metrics."""
    async with Slime(site.url) as slime, site.engines("sglang", enable_metrics=True) as sims:
        text = (await slime.http.get(f"{site.url}/engine_metrics")).raise_for_status().text
        for sim in sims:
            assert any(
                line.startswith("sglang:") and f'worker="{sim.url}"' in line for line in text.splitlines()
            )
        await sims[0].kill()
        text = (await slime.http.get(f"{site.url}/engine_metrics")).raise_for_status().text
        assert f'worker="{sims[1].url}"' in text and f'up{{worker="{sims[0].url}"}} 0' in text


async def test_engine_at_an_ipv6_address_behind_a_proxy_setting_serves(site: Site) -> None:
    """The URL in brackets is listed as registered. (The gateway has a useless proxy setting.)"""
    async with Slime(site.url) as slime, engines("sglang", 1, host="::1") as (sim,):
        assert sim.url.startswith("http://[::1]:")
        await slime.register(sim.url)
        assert await slime.workers() == [sim.url]
        await site.ready(sim)
        assert len((await slime.generate(PROMPT, TOKENS)).tokens) == TOKENS
