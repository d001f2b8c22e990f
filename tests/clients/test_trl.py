"""TRL's training step works with the gateway as its server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.sim import Drop, Reply, SimServer
from tests.clients.site import PAUSE, TOKENS, Site, calls, seen
from tests.clients.trl import TRL

PROMPT = [432, 402, 5]
RENDER = "/v1/chat/completions/render"


@asynccontextmanager
async def fleet(site: Site, count: int = 1, **knobs: bool) -> AsyncIterator[tuple[TRL, list[SimServer]]]:
    async with site.engines("vllm", count, **knobs) as sims:
        with TRL(site.url, PAUSE) as trl:
            yield trl, sims


async def test_server_tells_what_it_is(site: Site) -> None:
    """Model, length, configuration and number of ranks are those of a single server."""
    async with fleet(site) as (trl, (sim,)):
        assert await asyncio.to_thread(trl.connect) == ("sim", 8192)
        assert await asyncio.to_thread(trl.world_size) == 1
        received = await asyncio.to_thread(trl.server_info)
        assert received["vllm_config"]["model_config"]["max_model_len"] == 8192
        assert calls(sim, "/server_info")[-1].target == b"/server_info?config_format=json"


async def test_prompts_are_completed_in_one_call(site: Site) -> None:
    """A list of lists, with the bytes that requests wrote."""
    prompts = [[*PROMPT, index] for index in range(3)]
    choices = [{"index": index, "token_ids": [index]} for index in range(3)]
    async with fleet(site) as (trl, (sim,)):
        sim.behave(Reply(body=json.dumps({"choices": choices}).encode()), path="/v1/completions")
        assert await asyncio.to_thread(trl.complete, prompts, TOKENS) == [[0], [1], [2]]
        (arrival,) = calls(sim, "/v1/completions")
        assert b'"prompt": [[432, 402, 5, 0], [432, 402, 5, 1], [432, 402, 5, 2]]' in arrival.body


async def test_conversations_with_images_are_rendered_and_generated_in_threads(site: Site) -> None:
    """Each with an id that the client made."""
    rendered = {"token_ids": PROMPT, "features": {"mm_hashes": {"image": ["abc"]}}}
    async with fleet(site, 2) as (trl, sims):
        for sim in sims:
            sim.behave(Reply(body=json.dumps(rendered).encode()), times=16, path=RENDER)
        talks = [[{"role": "user", "content": f"picture {number}"}] for number in range(16)]
        outputs = await asyncio.to_thread(trl.look, talks, TOKENS)
        assert [len(output) for output in outputs] == [TOKENS] * 16
        assert sum(len(calls(sim, RENDER)) for sim in sims) == 16 == len(seen(*sims))
        for arrival in seen(*sims):
            body = json.loads(arrival.body)
            assert arrival.ids == [f"generate-tokens-{body['request_id']}"]
            assert body["sampling_params"]["output_kind"] == 2


async def test_try_with_the_same_id_is_a_request_of_its_own(site: Site) -> None:
    """A broken reply is a 502, which its library retries with the same id: it gets one reply in the end."""
    rendered = {"token_ids": PROMPT, "features": None}
    async with fleet(site) as (trl, (sim,)):
        sim.behave(Reply(body=json.dumps(rendered).encode()), path=RENDER)
        sim.behave(Drop())
        (output,) = await asyncio.to_thread(trl.look, [[]], TOKENS)
        assert len(output) == TOKENS
        first, second = seen(sim)
        assert first.body == second.body


async def test_weights_of_one_worker_are_transferred_through_the_gateway(site: Site) -> None:
    """Every step once, in order, with its body and query; later requests are served by the new weights."""
    async with fleet(site) as (trl, (sim,)):
        await asyncio.to_thread(trl.set_up_transfer)
        await asyncio.to_thread(trl.transfer, "7")
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
        assert calls(sim, "/update_weights")[0].body == (
            b'{"update_info": {"names": ["w"], "shapes": [[2, 2]]}}'
        )
        await site.ready(sim)
        reply = await site.client.post(
            "/inference/v1/generate", json={"token_ids": PROMPT, "sampling_params": {"max_tokens": 1}}
        )
        assert reply.json()["choices"][0]["weight_versions"][0]["version"] == "7"


async def test_transfer_to_several_workers_is_refused_plainly(site: Site) -> None:
    """At its first step, with a status that its library does not retry; no worker gets the call."""
    async with fleet(site, 2) as (trl, sims):
        for step in (trl.world_size, trl.set_up_transfer):
            with pytest.raises(httpx.HTTPStatusError) as failure:
                await asyncio.to_thread(step)
            assert failure.value.response.status_code == 409
            assert failure.value.response.json()["error"]["code"] == "one_worker_only"
        assert not any(calls(sim, "/init_weight_transfer_engine") for sim in sims)


async def test_what_means_the_same_to_every_worker_reaches_all(site: Site) -> None:
    """Caches, adapters, pauses: one call each, and a paused worker gets no requests."""
    async with fleet(site, 2, enable_lora=True) as (trl, sims):
        await asyncio.to_thread(trl.load_adapter, "policy", "/ckpt/policy")
        await asyncio.to_thread(trl.post, "/reset_prefix_cache", {})
        await asyncio.to_thread(trl.post, "/pause?mode=keep", {})
        entries = (await site.workers()).values()
        assert {(entry["state"], *entry["holds"]) for entry in entries} == {("held", "paused")}
        await asyncio.to_thread(trl.post, "/resume", {})
        await site.ready(*sims)
        for path in ("/v1/load_lora_adapter", "/reset_prefix_cache", "/pause", "/resume"):
            assert [len(calls(sim, path)) for sim in sims] == [1, 1], path
