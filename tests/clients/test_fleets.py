"""Engines that come, change, fail and are called by frameworks through one address."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from gateway.sim import Drop, Reply
from tests.clients.libraries import Framework
from tests.clients.sglang import (
    AReaL,
    ContextFull,
    Fatal,
    Miles,
    MilesByQuery,
    NeMoRL,
    Slime,
    Strands,
    Throttled,
)
from tests.clients.site import LONG, PROMPT, TOKENS, Site, calls, engines, seen
from tests.clients.vllm import GENERATE, TRL, Refused, SkyRL
from tests.support.gateway import eventually, until


@pytest.mark.parametrize("framework", [Slime, Strands])
async def test_missing_worker_is_retried_until_there_is_one(
    refusing_site: Site, framework: type[Framework]
) -> None:
    """By clients that retry; it is no fatal error to them, and no word of it looks like a full context."""
    async with framework(refusing_site.url) as client, engines("sglang", 1) as (sim,):
        early = asyncio.ensure_future(client.sample(PROMPT, TOKENS))
        await until(lambda: bool(client.failures))
        await refusing_site.serve(sim)
        assert len((await early).tokens) == TOKENS
        assert set(client.failures) == {503}


async def test_missing_worker_is_an_object_with_a_message(refusing_site: Site) -> None:
    async with SkyRL(refusing_site.url) as skyrl:
        with pytest.raises(Refused, match="worker"):
            await skyrl.sample(PROMPT, TOKENS)
        assert skyrl.failures == [503]


@pytest.mark.parametrize(
    ("status", "text", "ending", "tries"),
    [
        (404, "no such adapter", Fatal, 1),
        (401, "key", Fatal, 1),
        (400, "prompt is too long", ContextFull, 1),
        (503, "busy", Throttled, 3),
        (429, "slow down", Throttled, 3),
    ],
)
async def test_status_of_an_engine_means_what_it_means_without_a_gateway(
    site: Site, status: int, text: str, ending: type[Exception], tries: int
) -> None:
    """Each status is relayed with its text, and a 4xx takes no engine out of service."""
    async with Strands(site.url) as strands, site.engines("sglang", 1) as (sim,):
        strands.TRIES = 3
        sim.behave(Reply(status=status, body=json.dumps({"error": {"message": text}}).encode()), times=3)
        with pytest.raises(ending, match=text):
            await strands.sample(PROMPT, TOKENS)
        assert strands.failures == [status] * tries
        assert (await site.workers())[sim.url]["is_healthy"]


@pytest.mark.parametrize("framework", [NeMoRL, TRL, SkyRL])
async def test_lost_reply_is_a_502_and_a_second_try_is_the_clients_own(
    site: Site, framework: type[Framework]
) -> None:
    """The gateway sends no request again that may have run. Not every client tries again; TRL does with one
    id.
    """
    async with framework(site.url) as client, site.engines(framework.KIND, 1) as (sim,):
        sim.behave(Drop())
        if framework is SkyRL:
            with pytest.raises(Refused):
                await client.sample(PROMPT, TOKENS)
        else:
            assert len((await client.sample(PROMPT, TOKENS)).tokens) == TOKENS
        assert client.failures == [502] and len(seen(sim)) == len(client.sent)


@pytest.mark.parametrize("framework", [Miles, MilesByQuery])
async def test_abort_meets_no_dead_engine_in_the_list(site: Site, framework: type[Miles]) -> None:
    """A dead engine is flagged in the list, or left out of the list that has no flag."""
    async with framework(site.url) as miles, site.engines("sglang", token_delay=0.01) as sims:
        await sims[0].kill()

        async def dead() -> bool:
            return str((await site.workers())[sims[0].url]["state"]) == "dead"

        await eventually(dead)
        assert [entry["is_healthy"] for entry in (await site.workers()).values()] == [False, True]
        if framework is Miles:
            await miles.leave(sims[0].url)
        running = asyncio.ensure_future(miles.sample(PROMPT, LONG))
        await sims[1].holds(1)
        await miles.abort_rollout()
        assert (await running).status == "abort"
        assert miles.failures == []


async def test_prefill_worker_is_refused(site: Site) -> None:
    """Registered as a prefill worker, it would get no request; the framework learns that at once."""
    async with Slime(site.url) as slime, engines("sglang", 2) as (prefill, regular):
        with pytest.raises(httpx.HTTPStatusError, match="422"):
            await slime.register(prefill.url, worker_type="prefill", bootstrap_port=8998)
        await site.serve(regular)
        assert [*await site.workers()] == [regular.url]
        await asyncio.gather(*(slime.sample(PROMPT, TOKENS) for _ in range(4)))
        assert (len(seen(prefill)), len(seen(regular))) == (0, 4)


async def test_engine_at_an_ipv6_address_behind_a_proxy_setting_serves(site: Site) -> None:
    """The URL in brackets is listed as registered. (The gateway has a useless proxy setting.)"""
    async with Slime(site.url) as slime, site.engines("sglang", 1, host="::1") as (sim,):
        assert await slime.listed() == [sim.url] and sim.url.startswith("http://[::1]:")
        assert len((await slime.sample(PROMPT, TOKENS)).tokens) == TOKENS


async def test_metrics_of_all_engines_are_scraped_at_one_address(site: Site) -> None:
    """With the worker's URL as a label; an unreachable engine only lacks its own metrics."""
    async with site.engines("sglang", enable_metrics=True) as sims:
        text = (await site.client.get("/engine_metrics")).raise_for_status().text
        for sim in sims:
            own = f'worker="{sim.url}"'
            assert any(line.startswith("sglang:") and own in line for line in text.splitlines())
        await sims[0].kill()
        text = (await site.client.get("/engine_metrics")).raise_for_status().text
        assert f'worker="{sims[1].url}"' in text and f'up{{worker="{sims[0].url}"}} 0' in text


STEPS = ("/pause_generation", "/update_weights_from_disk", "/continue_generation")


async def test_each_step_of_an_update_reaches_every_engine_once(site: Site) -> None:
    """As it was written, and a rollout that is stopped in between continues where it was."""
    async with AReaL(site.url) as areal, site.engines("sglang", token_delay=0.005) as sims:
        complete = await areal.rollout(PROMPT, 100)
        running = [asyncio.ensure_future(areal.rollout(PROMPT, 100)) for _ in range(4)]
        for sim in sims:
            await sim.holds(2)
        await areal.update_weights("/ckpt/step-2", "2")
        assert await asyncio.gather(*running) == [complete] * 4
        for sim in sims:
            assert [len(calls(sim, path)) for path in STEPS] == [1, 1, 1]
            assert calls(sim, STEPS[1])[0].body == (
                b'{"model_path": "/ckpt/step-2", "weight_version": "2", "abort_all_requests": true}'
            )


async def test_adapter_of_each_version_is_on_every_engine(site: Site) -> None:
    """Every engine has the current adapter; the engine refuses the name of an unloaded one."""
    async with AReaL(site.url) as areal, site.engines("sglang", enable_lora=True) as sims:
        for version in (1, 2):
            name = await areal.update_adapter("policy", version)
            rollouts = [areal.rollout(PROMPT, TOKENS, lora=name) for _ in range(6)]
            assert {len(tokens) for tokens in await asyncio.gather(*rollouts)} == {TOKENS}
        assert all(seen(sim) for sim in sims)
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            await areal.rollout(PROMPT, TOKENS, lora="policy-v1")


@pytest.mark.parametrize(
    ("framework", "step", "path"),
    [
        (AReaL, "join_group", "/init_weights_update_group"),
        (TRL, "set_up_transfer", "/init_weight_transfer_engine"),
        (TRL, "world_size", "/get_world_size"),
    ],
)
async def test_transfer_to_several_workers_is_refused_plainly(
    site: Site, framework: type[Framework], step: str, path: str
) -> None:
    """At its first step, with advice, by a status that no library retries; a single engine is called."""
    async with framework(site.url) as client, site.engines(framework.KIND) as sims:
        client.TRIES = 1 if framework is AReaL else client.TRIES
        with pytest.raises(httpx.HTTPStatusError) as failure:
            await getattr(client, step)()
        refusal = failure.value.response.json()["error"]
        assert (failure.value.response.status_code, refusal["code"]) == (409, "one_worker_only")
        assert "X-Worker-Id" in refusal["message"]
        assert not any(calls(sim, path) for sim in sims)
        await client.leave(sims[1].url)
        await getattr(client, step)()
        assert [len(calls(sim, path)) for sim in sims] == [1, 0]


async def test_weights_of_one_worker_are_transferred_through_the_gateway(site: Site) -> None:
    """Every step once, in order, with its body and query; later requests are served by the new weights."""
    async with TRL(site.url) as trl, site.engines("vllm", 1) as (sim,):
        await trl.set_up_transfer()
        await trl.transfer("7")
        steps = [one.target for one in sim.all_requests if one.method == b"POST" and one.body[:1] == b"{"]
        assert [step for step in steps if not step.startswith(b"/inference")] == [
            b"/init_weight_transfer_engine",
            b"/pause?mode=keep",
            b"/start_weight_update",
            b"/update_weights",
            b"/finish_weight_update",
            b"/reset_prefix_cache",
            b"/resume",
        ]
        body = b'{"update_info": {"names": ["w"], "shapes": [[2, 2]]}}'
        assert [call.body for call in calls(sim, "/update_weights")] == [body]
        await site.ready(sim)
        reply = await trl.post(GENERATE, {"token_ids": PROMPT, "sampling_params": {"max_tokens": 1}})
        assert reply["choices"][0]["weight_versions"][0]["version"] == "7"


async def test_what_means_the_same_to_every_worker_reaches_all(site: Site) -> None:
    """Caches, adapters, pauses: one call each, and a paused worker gets no requests."""
    async with TRL(site.url) as trl, site.engines("vllm", enable_lora=True) as sims:
        adapter = {"lora_name": "policy", "lora_path": "/ckpt/policy", "load_inplace": True}
        await trl.post("/v1/load_lora_adapter", adapter)
        await trl.post("/reset_prefix_cache", {})
        await trl.post("/pause?mode=keep", {})
        entries = (await site.workers()).values()
        assert {(entry["state"], *entry["holds"]) for entry in entries} == {("held", "paused")}
        await trl.post("/resume", {})
        await site.ready(*sims)
        for path in ("/v1/load_lora_adapter", "/reset_prefix_cache", "/pause", "/resume"):
            assert [len(calls(sim, path)) for sim in sims] == [1, 1], path
