"""What frameworks need of the gateway in front of any engines, as tests for simulated and for real ones."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.libraries import Framework
from tests.clients.sglang import (
    AReaL,
    BenchServing,
    ContextFull,
    LmEval,
    Miles,
    MilesByQuery,
    NeMoRL,
    Roll,
    Slime,
    Strands,
    Verl,
)
from tests.clients.site import BUSY, LONG, PROMPT, TOKENS, EnginesOf, Site
from tests.clients.vllm import TRL, PrimeRL, Refused, SkyRL, Vime
from tests.support.gateway import eventually
from tests.support.processes import free_port

SCORED = [*PROMPT, 8, 9]


def new_version() -> str:
    """Return a number, as trainers use, that no earlier run has used."""
    return str(time.monotonic_ns())


async def finished(*running: asyncio.Future[Any]) -> set[tuple[int, str]]:
    """Return the lengths of samples and their ends."""
    return {(len(sample.tokens), sample.status) for sample in await asyncio.gather(*running)}


class ClientContract:
    """Tests with the fixtures ``site``, a gateway that queues requests while it has no worker,
    ``engines_of``, and ``weights``, a path that the engines can load.
    """

    @pytest.mark.parametrize(
        ("framework", "ending"),
        [(Slime, ""), (NeMoRL, ""), (Roll, "/"), (Verl, ""), (Vime, ""), (Miles, "@0"), (MilesByQuery, "@0")],
    )
    async def test_engines_come_serve_and_go_in_any_dialect(
        self, site: Site, engines_of: EnginesOf, framework: type[Framework], ending: str
    ) -> None:
        """They are listed as they were spelled, at once and also if nothing listens there yet; an earlier
        sample is queued for the first; one that leaves finishes its requests, and the others get all new
        ones.
        """
        engines = await engines_of(framework.KIND, 2)
        urls, nowhere = [engine.url + ending for engine in engines], f"http://127.0.0.1:{free_port()}"
        async with framework(site.url) as client:
            early = asyncio.ensure_future(client.sample(PROMPT, TOKENS))
            await site.queues(1)
            for url in (nowhere, *urls, urls[0]):
                await client.register(url)
                assert url in await client.listed()
            for _ in range(1 + (framework in (Verl, MilesByQuery))):  # by query also what is not there
                await client.leave(nowhere)
            assert sorted(await site.workers()) == sorted(urls)
            assert await finished(early) == {(TOKENS, "length")}
            await site.ready(*urls)
            running = [asyncio.ensure_future(client.sample(PROMPT, BUSY)) for _ in urls]
            for engine in engines:
                await engine.holds(1)
            await client.leave(urls[0])
            for _ in urls[1:]:
                assert len((await client.sample(PROMPT, TOKENS)).tokens) == TOKENS
            assert await finished(*running) == {(BUSY, "length")}

            async def gone() -> bool:
                return bool(await client.listed() == urls[1:])

            await eventually(gone)
            assert client.failures == []

    async def test_rollouts_that_come_too_early_are_queued_and_none_is_lost(
        self, site: Site, engines_of: EnginesOf
    ) -> None:
        """prime-rl retries nothing, and its wait for health ends as soon as the gateway runs."""
        async with PrimeRL(site.url) as prime:
            assert await prime.healthy()
            turns = [asyncio.ensure_future(prime.sample([*PROMPT, n], TOKENS)) for n in range(12)]
            await site.queues(12)
            await site.serve(*await engines_of("vllm", 2))
            assert await finished(*turns) == {(TOKENS, "length")}

    @pytest.mark.parametrize("framework", [Slime, Vime])
    async def test_rollout_is_aborted_around_the_router(
        self, site: Site, engines_of: EnginesOf, framework: type[Slime | Vime]
    ) -> None:
        """The list has URLs that a client can call; running requests end as aborted with their tokens, and no
        engine counts as failed for it.
        """
        engines = await engines_of(framework.KIND, 2)
        await site.serve(*engines)
        async with framework(site.url) as client:
            running = [asyncio.ensure_future(client.sample(PROMPT, LONG)) for _ in engines]
            for engine in engines:
                await engine.holds(1)
            await client.abort_rollout()
            samples = await asyncio.gather(*running)
            assert {sample.status for sample in samples} == {"abort"}
            assert all(0 < len(sample.tokens) == len(sample.logprobs) for sample in samples)
            assert client.failures == []
            await site.ready(*engines)

    @pytest.mark.parametrize("framework", [Slime, Vime, PrimeRL, Roll])
    async def test_one_request_is_ended_and_the_one_beside_it_is_complete(
        self, site: Site, engines_of: EnginesOf, framework: type[Framework]
    ) -> None:
        """By a cancelled turn that slime aborts through the router, by vime's id as the engine spells it, by
        ROLL at each engine, or because prime-rl hangs up.
        """
        engines = await engines_of(framework.KIND, 2 if framework is Vime else 1)
        await site.serve(*engines)
        async with framework(site.url) as client:
            start: Any = {Slime: "turn", Vime: "named", Roll: "generate"}.get(framework, "sample")
            names = [("one",), ("two",)] if start in ("named", "generate") else [(), ()]
            ended, kept = (
                asyncio.ensure_future(getattr(client, start)(*name, PROMPT, tokens))
                for name, tokens in zip(names, (LONG, BUSY), strict=True)
            )
            for engine in engines:
                await engine.holds(2 // len(engines))
            if isinstance(client, Vime):
                body = {"request_ids": ["generate-tokens-one"]}
                answer = await client.post("/abort_requests", body)
                assert answer["aborted"] == 1 and [row["error"] for row in answer["results"]] == [None]
                assert (await ended).status == "abort"
            elif isinstance(client, Roll):
                await client.abort("one", [engine.url for engine in engines])
                assert [sample.status for sample in await ended] == ["abort"]
            else:
                ended.cancel()
                with pytest.raises((asyncio.CancelledError, httpx.HTTPError)):
                    await ended
            sample = (await kept)[0] if isinstance(client, Roll) else await kept
            assert (len(sample.tokens), sample.status) == (BUSY, "length")
            for engine in engines:
                await engine.holds(0)

    async def test_stream_is_ended_by_hanging_up(self, site: Site, engines_of: EnginesOf) -> None:
        """Each event has all tokens so far; the engine is free once the client has disconnected."""
        (engine,) = await engines_of("sglang", 1)
        await site.serve(engine)
        async with Slime(site.url) as slime:
            events = slime.stream(PROMPT, LONG)
            lengths = [await anext(events) for _ in range(4)]
            assert lengths == sorted(set(lengths))
            await engine.holds(1)
            await events.aclose()
            await engine.holds(0)

    async def test_new_weights_show_in_samples_and_old_samples_are_stale(
        self, site: Site, engines_of: EnginesOf, weights: Path
    ) -> None:
        """Paused, loaded, flushed and continued directly; a version may also be set by a call that ends
        nothing.
        """
        engines, version = await engines_of("sglang", 2), new_version()
        await site.serve(*engines)
        async with Slime(site.url) as slime:
            assert (await slime.sample(PROMPT, TOKENS)).version != version
            await slime.update_weights(version, str(weights))
            await site.ready(*engines)
            samples = await asyncio.gather(*(slime.sample(PROMPT, TOKENS) for _ in range(8)))
            assert {sample.version for sample in samples} == {version}
            for engine in engines:
                later = {"new_version": "41", "abort_all_requests": False}
                await slime.post(f"{engine.url}/update_weight_version", later)
            assert (await slime.sample(PROMPT, TOKENS)).version == "41"

    async def test_engines_half_way_to_new_weights_still_serve_one_model(
        self, site: Site, engines_of: EnginesOf, weights: Path, tmp_path: Path
    ) -> None:
        """An engine's model is named by the path of its weights; in the fleet it keeps its name."""
        engines, step = await engines_of("sglang", 2), tmp_path / "step-1"
        step.symlink_to(weights)
        async with Slime(site.url) as slime:
            url = engines[0].url
            assert (await slime.post(f"{url}/update_weights_from_disk", {"model_path": str(step)}))["success"]
            assert [card["id"] for card in (await slime.get(f"{url}/v1/models"))["data"]] == [str(step)]
            await site.serve(*engines)
            running = [asyncio.ensure_future(slime.sample(PROMPT, BUSY)) for _ in engines]
            for engine in engines:
                await engine.holds(1)
            assert await finished(*running) == {(BUSY, "length")}
            models = (await slime.get("/v1/models"))["data"]
            assert ([model["id"] for model in models], slime.failures) == (["tiny"], [])

    async def test_rollout_goes_on_after_new_weights_where_it_was_stopped(
        self, site: Site, engines_of: EnginesOf, weights: Path
    ) -> None:
        """Paused, updated and continued through the gateway, all engines and all rollouts; what is aborted is
        queued until an engine is ready.
        """
        engines, version = await engines_of("sglang", 2), new_version()
        await site.serve(*engines)
        async with AReaL(site.url) as areal:
            running = [asyncio.ensure_future(areal.rollout(PROMPT, BUSY)) for _ in engines]
            for engine in engines:
                await engine.holds(1)
            await areal.update_weights(str(weights), version)
            assert {len(tokens) for tokens in await asyncio.gather(*running)} == {BUSY}
            assert len([body for body in areal.sent if b"input_ids" in body]) > len(
                engines
            )  # at least one in two parts
            assert (await areal.get("/model_info"))["weight_version"] == version
            await site.ready(*engines)

    @pytest.mark.parametrize(
        ("framework", "pause", "body", "resume"),
        [
            (AReaL, "/pause_generation", {"mode": "retract"}, "/continue_generation"),
            (AReaL, "/pause_generation", {"mode": "in_place"}, "/continue_generation"),
            (TRL, "/pause?mode=keep", {}, "/resume"),
        ],
        ids=str,
    )
    async def test_paused_engine_loses_nothing_and_gets_nothing(
        self,
        site: Site,
        engines_of: EnginesOf,
        framework: type[Framework],
        pause: str,
        body: dict[str, str],
        resume: str,
    ) -> None:
        """Running requests are neither lost nor cut; new ones are queued at the gateway."""
        (engine,) = await engines_of(framework.KIND, 1)
        await site.serve(engine)
        async with framework(site.url) as client:
            running = asyncio.ensure_future(client.sample(PROMPT, BUSY))
            await engine.holds(1)
            await client.post(pause, body)
            late = asyncio.ensure_future(client.sample(PROMPT, TOKENS))
            await site.queues(1)
            assert not running.done() and not late.done()
            await client.post(resume, {})
            assert [len((await sample).tokens) for sample in (running, late)] == [BUSY, TOKENS]
            assert client.failures == []

    async def test_engine_that_sleeps_gets_nothing_until_it_is_woken(
        self, site: Site, engines_of: EnginesOf
    ) -> None:
        """Through the gateway, with a new version of its weights in between."""
        (engine,), version = await engines_of("vllm", 1), new_version()
        await site.serve(engine)
        async with Vime(site.url) as vime:
            assert await vime.post("/sleep?level=1", {}) == {"status": "sleeping", "level": 1}
            row = (await site.workers())[engine.url]
            assert (row["state"], row["holds"]) == ("held", ["paused"])
            late = asyncio.ensure_future(vime.sample(PROMPT, TOKENS))
            await site.queues(1)
            updated = await vime.post("/update_weight_version", {"new_version": version})
            assert updated == {"success": True, "new_version": version}
            await vime.post("/wake_up", {})
            assert await finished(late) == {(TOKENS, "length")}
            assert await vime.get("/weight_info") == {"weight_version": version}

    @pytest.mark.parametrize("framework", [Slime, LmEval, PrimeRL])
    async def test_text_is_scored(
        self, site: Site, engines_of: EnginesOf, framework: type[Slime | LmEval | PrimeRL]
    ) -> None:
        """By a teacher, by a prefill under the current weights, or for an evaluation: each token but the
        first.
        """
        await site.serve(*await engines_of(framework.KIND, 1))
        async with framework(site.url) as client:
            scores = await client.score(SCORED)
            assert len(scores) == len(SCORED) - 1 and all(score < 0 for score in scores)

    async def test_batch_of_ids_or_texts_is_answered_completely_and_in_order(
        self, site: Site, engines_of: EnginesOf
    ) -> None:
        """Each output is that of its prompt alone."""
        await site.serve(*await engines_of("sglang", 1))
        async with LmEval(site.url) as lm:
            ids = [[*PROMPT, number] for number in range(8)]
            texts = await lm.generate(ids, TOKENS)
            assert texts == [text for prompt in ids for text in await lm.generate([prompt], TOKENS)]
            assert len(set(texts)) > 1
            assert len(await lm.generate(["one", "two", "three"], TOKENS)) == 3

    async def test_load_generator_flushes_and_streams(self, site: Site, engines_of: EnginesOf) -> None:
        """Events arrive one by one, each with the count of all tokens so far."""
        await site.serve(*await engines_of("sglang", 2))
        async with BenchServing(site.url) as bench:
            await bench.flush()
            found = await asyncio.gather(*(bench.counts(f"prompt {number}", 10) for number in range(16)))
            assert all(counts == sorted(counts) and len(counts) > 1 for counts in found)
            assert {counts[-1] for counts in found} == {10}

    async def test_trajectories_run_turn_by_turn_and_say_goodbye(
        self, site: Site, engines_of: EnginesOf
    ) -> None:
        """Each turn contains those before it; the end of any trajectory is reported with success."""
        await site.serve(*await engines_of("vllm", 2))
        async with SkyRL(site.url) as skyrl:

            async def trajectory(name: str) -> int:
                history = [*PROMPT]
                for _ in range(3):
                    history += (await skyrl.generate(name, history, TOKENS)).tokens
                assert await skyrl.finish(name) == 200
                return len(history)

            lengths = await asyncio.gather(*(trajectory(f"traj-{number}") for number in range(8)))
            assert (set(lengths), skyrl.failures) == ({3 + 3 * TOKENS}, [])
            assert await skyrl.finish("never-seen") == 200

    async def test_agent_goes_on_until_its_context_is_full(self, site: Site, engines_of: EnginesOf) -> None:
        """Which it recognises by the engine's own text, at the first try."""
        await site.serve(*await engines_of("sglang", 1))
        async with Strands(site.url) as strands:
            assert await strands.healthy() and not await strands.sees_images()
            history = [*PROMPT]
            for _ in range(3):
                history += (await strands.sample(history, TOKENS)).tokens
            with pytest.raises(ContextFull):
                await strands.sample(history, 2 * LONG)
            assert strands.failures == [400]

    async def test_engines_refusal_is_an_error_at_once(self, site: Site, engines_of: EnginesOf) -> None:
        """With the engine's own status, and in an object with a message; nothing is sent twice."""
        await site.serve(*await engines_of("sglang", 1), *await engines_of("vllm", 1))
        async with Verl(site.url) as verl, SkyRL(site.url) as skyrl:
            with pytest.raises(httpx.HTTPStatusError, match="400"):
                await verl.generate(PROMPT, no_such_parameter=1)
            with pytest.raises(Refused, match="max_tokens"):
                await skyrl.sample(PROMPT, 0)
            skyrl.model_name = "another"
            with pytest.raises(Refused, match="another"):
                await skyrl.sample(PROMPT, TOKENS)
            assert (verl.failures, len(skyrl.failures)) == ([400], 2)

    async def test_server_tells_what_it_is(self, site: Site, engines_of: EnginesOf) -> None:
        """Health, model, length, configuration and number of ranks, as a single server does."""
        await site.serve(*await engines_of("vllm", 1))
        async with TRL(site.url) as trl, PrimeRL(site.url) as prime:
            assert await trl.healthy()
            assert [await prime.longest(name) for name in ("tiny", "other")] == [8192, None]
            assert await trl.world_size() == 1
            config = (await trl.get("/server_info", config_format="json"))["vllm_config"]["model_config"]
            assert config["max_model_len"] == 8192
