"""The scripted clients of ``tests/clients`` work with vLLM itself, on whose behaviour they rely."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from scripts.engines.servers import CONTEXT, MODEL_NAME
from tests.clients.prime_rl import PrimeRL
from tests.clients.site import PAUSE, TOKENS, Site
from tests.clients.skyrl import Refused, SkyRL, forward
from tests.clients.trl import TRL
from tests.clients.vime import GENERATE, Vime
from tests.engines.conftest import EngineOf
from tests.engines.front import LONG, PROMPT, running_requests

#: Random sampling may end a sequence at any token; tests that count tokens need a fixed length.
STEADY = {"ignore_eos": True}
#: Tokens of a request that a test waits for while it does something else.
BUSY = 400
#: Seconds within which an engine must end the request of a client that has disconnected.
FREED_WITHIN = 1.0


def vime_at(site: Site) -> Vime:
    vime = Vime(site.url, pause=PAUSE)
    vime.model_name, vime.sampling = MODEL_NAME, STEADY
    return vime


def prime_at(site: Site) -> PrimeRL:
    prime = PrimeRL(f"{site.url}/v1")
    prime.model_name, prime.sampling = MODEL_NAME, STEADY
    return prime


async def test_vime_rolls_out_and_lets_its_engine_finish(
    site: Site, client: httpx.AsyncClient, engine_of: EngineOf
) -> None:
    """Registered and listed; an earlier sample is queued for the engine; once removed, it finishes its
    requests.
    """
    engine = engine_of("vllm")
    async with vime_at(site) as vime:
        early = asyncio.ensure_future(vime.generate(PROMPT, TOKENS))
        await vime.register(engine.url)
        assert await vime.workers() == [engine.url]
        assert len((await early).tokens) == TOKENS
        samples = await asyncio.gather(*(vime.generate([*PROMPT, index], TOKENS) for index in range(12)))
        assert {(len(sample.tokens), sample.status) for sample in samples} == {(TOKENS, "length")}
        running = asyncio.ensure_future(vime.generate(PROMPT, BUSY))
        assert await running_requests(client, engine, 1) == 1
        await vime.leave(engine.url)
        assert len((await running).tokens) == BUSY
        assert (await vime.workers(), vime.failures) == ([], [])


async def test_vime_renders_and_generates_in_one_session(site: Site, engine_of: EngineOf) -> None:
    """It generates from the output of the engine's renderer."""
    await site.serve(engine_of("vllm"))
    async with vime_at(site) as vime:
        sample = await vime.look([{"role": "user", "content": "Hello"}], TOKENS)
        assert (len(sample.tokens), vime.failures) == (TOKENS, [])


async def test_vime_aborts_a_rollout_around_the_router(
    site: Site, client: httpx.AsyncClient, engine_of: EngineOf
) -> None:
    """Running requests end as aborted, with their tokens."""
    engine = engine_of("vllm")
    await site.serve(engine)
    async with vime_at(site) as vime:
        running = [asyncio.ensure_future(vime.generate(PROMPT, LONG)) for _ in range(4)]
        assert await running_requests(client, engine, 4) == 4
        await vime.abort_rollout(interval=PAUSE)
        samples = await asyncio.gather(*running)
        assert {sample.status for sample in samples} == {"abort"}
        assert all(sample.tokens for sample in samples)
        await site.ready(engine)


async def test_vime_aborts_one_request_through_the_router(
    site: Site, client: httpx.AsyncClient, engine_of: EngineOf
) -> None:
    """By the id as the engine spells it; no other request is affected."""
    engine = engine_of("vllm")
    await site.serve(engine)
    async with vime_at(site) as vime:

        async def named(name: str, tokens: int) -> Any:
            sampling = {"max_tokens": tokens, **STEADY}
            body = {"token_ids": PROMPT, "sampling_params": sampling}
            return await vime.post(f"{site.url}{GENERATE}", body, {"X-Request-Id": name})

        running = [asyncio.ensure_future(named(*one)) for one in (("sample-1", LONG), ("sample-2", BUSY))]
        assert await running_requests(client, engine, 2) == 2
        received = await vime.post(
            f"{site.url}/abort_requests", {"request_ids": ["generate-tokens-sample-1"]}
        )
        assert received["aborted"] == 1 and [row["error"] for row in received["results"]] == [None]
        aborted, kept = [(await reply)["choices"][0] for reply in running]
        assert (aborted["finish_reason"], len(kept["token_ids"])) == ("abort", BUSY)


async def test_prime_rl_loses_no_rollout_sent_too_early(site: Site, engine_of: EngineOf) -> None:
    """prime-rl retries nothing, and each token has a log probability that it can check."""
    engine = engine_of("vllm")
    async with prime_at(site) as prime:
        assert await prime.healthy()
        turns = [asyncio.ensure_future(prime.turn(f"t-{n}", [*PROMPT, n], TOKENS)) for n in range(12)]
        await site.serve(engine)
        assert {len(tokens) for tokens in await asyncio.gather(*turns)} <= set(range(1, TOKENS + 1))
        assert await prime.finish("t-0") == 200


async def test_prime_rl_learns_and_scores(site: Site, engine_of: EngineOf) -> None:
    """The longest sequence, and the likelihood of each token of a prompt."""
    await site.serve(engine_of("vllm"))
    async with prime_at(site) as prime:
        assert await prime.longest(MODEL_NAME) == int(CONTEXT)
        scores = await prime.score("trace-1", [*PROMPT, 8, 9])
        assert len(scores) == 4 and all(score < 0 for score in scores)


async def test_prime_rl_gives_a_rollout_up(
    site: Site, client: httpx.AsyncClient, engine_of: EngineOf
) -> None:
    """Its connection is closed, and the engine is free; the trace beside it continues."""
    engine = engine_of("vllm")
    await site.serve(engine)
    async with prime_at(site) as prime:
        prime.sampling = {**STEADY, "stop_token_ids": []}
        kept = asyncio.ensure_future(prime.turn("kept", PROMPT, BUSY))
        given_up = asyncio.ensure_future(prime.turn("given-up", PROMPT, LONG))
        assert await running_requests(client, engine, 2) == 2
        given_up.cancel()
        with pytest.raises((asyncio.CancelledError, httpx.HTTPError)):
            await given_up
        assert await running_requests(client, engine, 1, FREED_WITHIN) == 1
        assert not kept.done()
        assert len(await kept) == BUSY


async def test_skyrl_runs_trajectories_turn_by_turn(site: Site, engine_of: EngineOf) -> None:
    """Each turn contains those before it; the end of the trajectory is reported."""
    await site.serve(engine_of("vllm"))
    async with SkyRL(site.url, PAUSE) as skyrl:
        skyrl.model_name = MODEL_NAME
        await skyrl.wait_for_health()

        async def trajectory(name: str) -> int:
            history = [*PROMPT]
            for _ in range(3):
                history += (await skyrl.generate(name, history, TOKENS))["token_ids"]
            assert await skyrl.finish(name) == 200
            return len(history)

        lengths = await asyncio.gather(*(trajectory(f"traj-{number}") for number in range(6)))
        assert (set(lengths), skyrl.broken) == ({3 + 3 * TOKENS}, 0)


async def test_skyrl_uses_the_engines_other_routes(site: Site, engine_of: EngineOf) -> None:
    """Tokenisation both ways, a chat, its rendering, and completions for its other front end."""
    await site.serve(engine_of("vllm"))
    async with SkyRL(site.url, PAUSE) as skyrl:
        words = {"model": MODEL_NAME, "prompt": "Hello world!"}
        tokens = (await skyrl.post("/tokenize", "traj-1", words))["tokens"]
        back = await skyrl.post("/detokenize", "traj-1", {"model": MODEL_NAME, "tokens": tokens})
        assert back["prompt"] == "Hello world!"
        chat = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        assert (await skyrl.post("/v1/chat/completions", "traj-1", chat))["choices"]
        assert (await skyrl.post("/v1/chat/completions/render", "traj-1", chat))["token_ids"]
        limit = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 1, "return_token_ids": True}
        assert len((await forward(site.url, limit))["choices"][0]["token_ids"]) == 1


async def test_skyrl_gets_the_engines_refusal(site: Site, engine_of: EngineOf) -> None:
    """In an object with a message, which is not retried."""
    await site.serve(engine_of("vllm"))
    async with SkyRL(site.url, PAUSE) as skyrl:
        skyrl.model_name = MODEL_NAME
        with pytest.raises(Refused, match="max_tokens"):
            await skyrl.generate("traj-1", PROMPT, 0)
        skyrl.model_name = "another"
        with pytest.raises(Refused, match="another"):
            await skyrl.generate("traj-1", PROMPT, TOKENS)
        assert skyrl.broken == 0


async def test_trl_learns_what_its_server_is_and_completes(site: Site, engine_of: EngineOf) -> None:
    """Through one address: model, length, configuration, ranks; prompts in one call, in their order."""
    await site.serve(engine_of("vllm"))
    with TRL(site.url, PAUSE) as trl:
        trl.model_name = MODEL_NAME
        assert await asyncio.to_thread(trl.connect) == (MODEL_NAME, int(CONTEXT))
        assert await asyncio.to_thread(trl.world_size) == 1
        received = await asyncio.to_thread(trl.server_info)
        assert received["vllm_config"]["model_config"]["max_model_len"] == int(CONTEXT)
        outputs = await asyncio.to_thread(trl.complete, [[*PROMPT, index] for index in range(3)], TOKENS)
        assert all(0 < len(output) <= TOKENS for output in outputs) and len(outputs) == 3
        talks = [[{"role": "user", "content": f"picture {number}"}] for number in range(4)]
        looked = await asyncio.to_thread(trl.look, talks, TOKENS)
        assert all(0 < len(output) <= TOKENS for output in looked) and len(looked) == 4


async def test_trl_stops_time_for_its_engine(
    site: Site, client: httpx.AsyncClient, engine_of: EngineOf
) -> None:
    """Kept over a pause, running requests are neither lost nor cut; new ones are queued at the gateway."""
    engine = engine_of("vllm")
    await site.serve(engine)
    async with vime_at(site) as vime:
        with TRL(site.url, PAUSE) as trl:
            running = asyncio.ensure_future(vime.generate(PROMPT, BUSY))
            assert await running_requests(client, engine, 1) == 1
            await asyncio.to_thread(trl.post, "/pause?mode=keep", {})
            late = asyncio.ensure_future(vime.generate(PROMPT, TOKENS))
            assert await running_requests(client, engine, 2, seconds=1) == 1
            assert not running.done() and not late.done()
            await asyncio.to_thread(trl.post, "/reset_prefix_cache", {})
            await asyncio.to_thread(trl.post, "/resume", {})
            assert [len((await sample).tokens) for sample in (running, late)] == [BUSY, TOKENS]
        assert vime.failures == []


async def test_engine_that_sleeps_gets_nothing_until_it_is_woken(site: Site, engine_of: EngineOf) -> None:
    """Put to sleep and woken through the gateway, with a new version of its weights in between."""
    engine, version = engine_of("vllm"), str(time.monotonic_ns())
    await site.serve(engine)
    async with vime_at(site) as vime:
        slept = await site.client.post("/sleep", params={"level": 1})
        assert slept.raise_for_status().json() == {"status": "sleeping", "level": 1}
        entry = (await site.workers())[engine.url]
        assert (entry["state"], entry["holds"]) == ("held", ["paused"])
        late = asyncio.ensure_future(vime.generate(PROMPT, TOKENS))
        received = await site.client.post("/update_weight_version", json={"new_version": version})
        assert received.raise_for_status().json() == {"success": True, "new_version": version}
        assert not late.done()
        (await site.client.post("/wake_up")).raise_for_status()
        assert len((await late).tokens) == TOKENS
        assert (await site.client.get("/weight_info")).json() == {"weight_version": version}
