"""The scripted clients of ``tests/clients`` work with SGLang itself, on whose behaviour they rely."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from scripts.engines import paths
from scripts.engines.servers import MODEL_NAME
from tests.clients.areal import AReaL
from tests.clients.lm_eval import BenchServing, LmEval
from tests.clients.miles import Miles, Version, is_stale
from tests.clients.nemo_rl import NeMoRL
from tests.clients.site import PAUSE, TOKENS, Site
from tests.clients.slime import Slime
from tests.clients.strands import ContextFull, Strands
from tests.clients.verl import Adapter
from tests.engines.conftest import EngineOf
from tests.engines.front import LONG, PROMPT, running_requests

#: Random sampling may end a sequence at any token; tests that count tokens need a fixed length.
STEADY = {"ignore_eos": True}
#: Tokens of a request that a test waits for while it does something else.
BUSY = 400
#: Seconds within which an engine must end the request of a client that has disconnected.
FREED_WITHIN = 1.0


def new_version() -> str:
    """Return a number, as trainers use, that no earlier run has used."""
    return str(time.monotonic_ns())


def slime_at(site: Site, engines: int = 1) -> Slime:
    slime = Slime(site.url, engines, pause=PAUSE)
    slime.sampling = STEADY
    return slime


async def test_slime_rolls_out_over_engines_that_come_and_go(
    site: Site, client: httpx.AsyncClient, engine_of: EngineOf
) -> None:
    """A sample before the first engine is queued, the others are distributed; a removed engine finishes its
    requests.
    """
    engines = engine_of("sglang"), engine_of("sglang-incremental")
    async with slime_at(site, 2) as slime:
        early = asyncio.ensure_future(slime.generate(PROMPT, TOKENS))
        for engine in engines:
            await slime.register(engine.url)
        assert await slime.workers() == [engine.url for engine in engines]
        sample = await early
        assert (len(sample.tokens), len(sample.logprobs), sample.status) == (TOKENS, TOKENS, "length")
        await site.ready(*engines)
        running = [asyncio.ensure_future(slime.generate(PROMPT, BUSY)) for _ in range(4)]
        assert [await running_requests(client, engine, 2) for engine in engines] == [2, 2]
        await slime.leave(engines[0].url)
        assert await running_requests(client, engines[0], 2) == 2
        later = await asyncio.gather(*(slime.generate(PROMPT, TOKENS) for _ in range(3)))
        assert {len(sample.tokens) for sample in await asyncio.gather(*running)} == {BUSY}
        assert {len(sample.tokens) for sample in later} == {TOKENS}
        assert (await slime.workers(), slime.failures) == ([engines[1].url], [])


async def test_slime_ends_a_stream_by_hanging_up(
    site: Site, client: httpx.AsyncClient, engine_of: EngineOf
) -> None:
    """Each event has all tokens so far; the engine is free as soon as the client has disconnected."""
    engine = engine_of("sglang")
    async with slime_at(site) as slime:
        await slime.register(engine.url)
        async with slime.stream(PROMPT, LONG) as events:
            lengths = [len((await anext(events)).tokens) for _ in range(4)]
        assert lengths == sorted(set(lengths))
        assert await running_requests(client, engine, 0, FREED_WITHIN) == 0


async def test_slime_aborts_one_turn_through_the_router(
    site: Site, client: httpx.AsyncClient, engine_of: EngineOf
) -> None:
    """The turn beside it is complete."""
    engine = engine_of("sglang")
    async with slime_at(site) as slime:
        await slime.register(engine.url)
        kept = asyncio.ensure_future(slime.turn(PROMPT, BUSY))
        dropped = asyncio.ensure_future(slime.turn(PROMPT, LONG))
        assert await running_requests(client, engine, 2) == 2
        dropped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dropped
        assert await running_requests(client, engine, 1, FREED_WITHIN) == 1
        assert not kept.done()
        sample = await kept
        assert (sample.status, len(sample.tokens)) == ("length", BUSY)


async def test_slime_aborts_a_rollout_around_the_router(
    site: Site, client: httpx.AsyncClient, engine_of: EngineOf
) -> None:
    """Running requests end as aborted with their tokens; the gateway counts no engine as failed for it."""
    engines = engine_of("sglang"), engine_of("sglang-incremental")
    async with slime_at(site, 2) as slime:
        for engine in engines:
            await slime.register(engine.url)
        await site.ready(*engines)
        running = [asyncio.ensure_future(slime.generate(PROMPT, LONG)) for _ in range(4)]
        assert [await running_requests(client, engine, 2) for engine in engines] == [2, 2]
        await slime.abort_rollout(interval=PAUSE)
        samples = await asyncio.gather(*running)
        assert {sample.status for sample in samples} == {"abort"}
        assert all(len(sample.tokens) == len(sample.logprobs) > 0 for sample in samples)
        assert slime.failures == []
        await site.ready(*engines)


async def test_slime_sees_its_new_weights(site: Site, engine_of: EngineOf) -> None:
    """Paused, loaded, flushed and continued directly; a teacher scores under the new weights."""
    engines, version = (engine_of("sglang"), engine_of("sglang-incremental")), new_version()
    async with slime_at(site, 2) as slime:
        for engine in engines:
            await slime.register(engine.url)
        await site.ready(*engines)
        assert (await slime.generate(PROMPT, TOKENS)).weight_version != version
        await slime.update_weights(version, str(paths.model()))
        await site.ready(*engines)
        samples = await asyncio.gather(*(slime.generate(PROMPT, TOKENS) for _ in range(4)))
        assert {sample.weight_version for sample in samples} == {version}
        scores = await slime.score([*PROMPT, 8, 9])
        assert len(scores) == 4 and all(score < 0 for score in scores)


async def test_engines_half_way_to_new_weights_still_serve_one_model(
    site: Site, engine_of: EngineOf, tmp_path: Path
) -> None:
    """An engine's model is named by the path of its weights; in the fleet it keeps its name."""
    engines, step = (engine_of("sglang"), engine_of("sglang-incremental")), tmp_path / "step-1"
    step.symlink_to(paths.model())
    await site.serve(*engines)
    async with slime_at(site, 2) as slime:
        loaded = await slime.http.post(
            f"{engines[0].url}/update_weights_from_disk", json={"model_path": str(step)}
        )
        assert loaded.raise_for_status().json()["success"]
        received = (await slime.http.get(f"{engines[0].url}/v1/models")).json()["data"][0]["id"]
        assert received == str(step)
        # Once removed and added again, the engine is identified anew.
        await site.clear()
        await site.serve(*engines)
        samples = await asyncio.gather(*(slime.generate(PROMPT, TOKENS) for _ in range(8)))
        assert {len(sample.tokens) for sample in samples} == {TOKENS}
        models = (await slime.http.get(f"{site.url}/v1/models")).json()["data"]
        assert ([model["id"] for model in models], slime.failures) == ([MODEL_NAME], [])


async def test_areal_changes_weights_in_the_middle_of_its_rollouts(
    site: Site, client: httpx.AsyncClient, engine_of: EngineOf
) -> None:
    """Through the gateway: both engines pause, load and continue, and so does each rollout."""
    engines, version = (engine_of("sglang"), engine_of("sglang-incremental")), new_version()
    await site.serve(*engines)
    async with AReaL(site.url, PAUSE) as areal:
        running = [asyncio.ensure_future(areal.rollout(PROMPT, BUSY)) for _ in range(4)]
        assert [await running_requests(client, engine, 2) for engine in engines] == [2, 2]
        await areal.update_weights(str(paths.model()), version)
        assert {len(tokens) for tokens in await asyncio.gather(*running)} == {BUSY}
        received = (await areal.http.get(f"{site.url}/model_info")).raise_for_status().json()
        assert received["weight_version"] == version
        await site.ready(*engines)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_areal_stops_time_for_its_engines(
    site: Site, client: httpx.AsyncClient, engine_of: EngineOf, mode: str
) -> None:
    """Running requests are neither lost nor cut, and a new rollout is queued at the gateway."""
    engine = engine_of("sglang")
    await site.serve(engine)
    async with AReaL(site.url, PAUSE) as areal:
        running = asyncio.ensure_future(areal.rollout(PROMPT, BUSY))
        assert await running_requests(client, engine, 1) == 1
        paused = await areal.call("/pause_generation", {"mode": mode})
        assert paused["status"] == "ok"
        late = asyncio.ensure_future(areal.rollout(PROMPT, TOKENS))
        assert await running_requests(client, engine, 2, seconds=1) == 1
        assert not running.done() and not late.done()
        await areal.call("/continue_generation", {})
        assert [len(await rollout) for rollout in (running, late)] == [BUSY, TOKENS]


async def test_lm_eval_gets_complete_batches(site: Site, engine_of: EngineOf) -> None:
    """In order, as ids or as texts, with the likelihoods of the prompt."""
    await site.serve(engine_of("sglang"))
    async with LmEval(f"{site.url}/generate") as lm:
        ids = [[*PROMPT, number] for number in range(3)]
        texts = await lm.generate(ids, TOKENS)
        alone = [await lm.generate([prompt], TOKENS) for prompt in ids]
        assert texts == [text for (text,) in alone] and len(set(texts)) == 3
        assert len(await lm.generate(["one", "two", "three"], TOKENS)) == 3
        found = await lm.loglikelihood([[*PROMPT, 8], [*PROMPT, 9, 10]], [1, 2])
        assert [total < 0 for total, _ in found] == [True, True]


async def test_load_generator_flushes_and_streams(site: Site, engine_of: EngineOf) -> None:
    """Events arrive one by one, each with the count of all tokens so far."""
    await site.serve(engine_of("sglang"), engine_of("sglang-incremental"))
    async with BenchServing(site.url) as bench:
        assert await bench.model() == MODEL_NAME
        await bench.flush()
        results = await asyncio.gather(*(bench.request(f"prompt {number}", 10) for number in range(8)))
        assert {total for total, _ in results} == {10}
        assert all(counts == sorted(counts) and len(counts) > 1 for _, counts in results)


@pytest.mark.parametrize("version", [(0, 2, 1), (0, 2, 4), (0, 3, 2)], ids=str)
async def test_miles_works_in_any_dialect(
    site: Site, client: httpx.AsyncClient, engine_of: EngineOf, version: Version
) -> None:
    """Its engine is listed with its rank; samples, recomputed log probabilities, an abort, a removal."""
    engine = engine_of("sglang")
    rank = f"{engine.url}@0"
    async with Miles(site.url, version, PAUSE) as miles:
        miles.sampling = STEADY
        await miles.register(rank)
        assert (await miles.listed(), await miles.workers()) == ([rank], [engine.url])
        sample = await miles.generate(PROMPT, TOKENS, key="sample-1")
        assert len(sample.tokens) == TOKENS
        assert len(await miles.recompute([*PROMPT, *sample.tokens])) == len(PROMPT) + TOKENS - 1
        running = asyncio.ensure_future(miles.generate(PROMPT, LONG))
        assert await running_requests(client, engine, 1) == 1
        await miles.abort()
        assert (await running).status == "abort"
        await miles.leave(rank)
        assert (await miles.listed(), miles.failures) == ([], [])


async def test_miles_tells_stale_samples_by_the_engines_version(site: Site, engine_of: EngineOf) -> None:
    """The version is set at the engine by a call that ends nothing."""
    engine = engine_of("sglang")
    await site.serve(engine)
    async with Miles(site.url, pause=PAUSE) as miles:
        version = {"new_version": "41", "abort_all_requests": False}
        (await miles.http.post(f"{engine.url}/update_weight_version", json=version)).raise_for_status()
        sample = await miles.generate(PROMPT, TOKENS)
        assert not is_stale(sample, now=42, most=1)
        assert is_stale(sample, now=43, most=1)


async def test_nemo_rl_finds_its_engine_and_takes_it_away(site: Site, engine_of: EngineOf) -> None:
    """Many samples at once, each cut by length."""
    engine = engine_of("sglang")
    async with NeMoRL(site.url, pause=PAUSE) as nemo:
        nemo.sampling = STEADY
        await nemo.register(engine.url, patience=2.0, interval=60.0)
        made = await asyncio.gather(*(nemo.generate([*PROMPT, index], TOKENS) for index in range(12)))
        assert {(len(tokens), cut) for tokens, cut in made} == {(TOKENS, True)}
        await nemo.leave(engine.url)
        assert await site.workers() == {}


async def test_verl_gets_the_engines_refusal_at_once(site: Site, engine_of: EngineOf) -> None:
    """Engines are added and removed by query; an invalid body gets the engine's own error."""
    engine = engine_of("sglang")
    verl = Adapter(site.url, PAUSE)
    await verl.add(engine.url)
    await site.ready(engine)
    reply = await verl.generate(PROMPT, {"max_new_tokens": TOKENS}, rid="verl-1")
    assert reply["meta_info"]["id"] == "verl-1"
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        await verl.generate(PROMPT, {"no_such_parameter": 1})
    await verl.remove(engine.url)


async def test_strands_tells_a_full_context_from_other_faults(site: Site, engine_of: EngineOf) -> None:
    """By the text of the engine's own error."""
    engine = engine_of("sglang")
    await site.serve(engine)
    async with Strands(site.url, PAUSE) as strands:
        assert await strands.healthy() and not await strands.sees_images()
        history = [*PROMPT, *(await strands.turn(PROMPT, TOKENS))["output_ids"]]
        assert len((await strands.turn(history, TOKENS))["output_ids"]) <= TOKENS
        with pytest.raises(ContextFull):
            await strands.turn(PROMPT, 2 * LONG)
        assert strands.refused == [400]
