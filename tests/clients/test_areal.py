"""AReaL's rollouts and weight updates work with the gateway as its one server."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.clients.areal import AReaL
from tests.clients.site import PAUSE, TOKENS, Site, at_work, calls, seen

PROMPT = [432, 402, 5]


async def test_every_call_is_a_connection_of_its_own(site: Site) -> None:
    """The gateway closes the connection as requested, and keeps its own connections to the engines."""
    async with AReaL(site.url) as areal, site.engines("sglang") as sims:
        one = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 1}}
        for method, path, body in (("GET", "/health", None), ("POST", "/generate", one)):
            response = await areal.http.request(method, f"{site.url}{path}", json=body)
            assert (response.status_code, response.headers["connection"]) == (200, "close")
        assert await areal.health()
        opened = sum(sim.accepted for sim in sims)
        rollouts = [await areal.rollout([*PROMPT, index], TOKENS) for index in range(10)]
        assert {len(tokens) for tokens in rollouts} == {TOKENS}
        # Probes use the same pool; ten consecutive requests do not need ten more connections.
        assert sum(sim.accepted for sim in sims) - opened < 10


async def test_rollout_goes_on_after_new_weights_where_it_was_stopped(queueing_site: Site) -> None:
    """Paused, updated and continued through the gateway: every engine gets each call once, and an aborted
    request is queued until an engine is ready.
    """
    async with (
        AReaL(queueing_site.url, PAUSE) as areal,
        queueing_site.engines("sglang", token_delay=0.01) as sims,
    ):
        complete = await areal.rollout(PROMPT, 100)
        running = [asyncio.ensure_future(areal.rollout(PROMPT, 100)) for _ in range(4)]
        await at_work(2, *sims)
        await areal.update_weights("/ckpt/step-2", "2")
        rollouts = await asyncio.gather(*running)
        assert len(complete) == 100 and rollouts == [complete] * 4
        assert len(seen(*sims)) > 5  # at least one in two parts
        for sim in sims:
            assert [len(calls(sim, path)) for path in _STEP] == [1, 1, 1]
            assert calls(sim, "/update_weights_from_disk")[0].body == (
                b'{"model_path": "/ckpt/step-2", "weight_version": "2", "abort_all_requests": true}'
            )
        await queueing_site.ready(*sims)


_STEP = ("/pause_generation", "/update_weights_from_disk", "/continue_generation")


async def test_adapter_of_each_version_is_on_every_engine(site: Site) -> None:
    """Every engine has the current adapter; the engine refuses the name of an unloaded one."""
    async with AReaL(site.url, PAUSE) as areal, site.engines("sglang", enable_lora=True) as sims:
        for version in (1, 2):
            name = await areal.update_adapter("policy", version)
            rollouts = [areal.rollout(PROMPT, TOKENS, lora=name) for _ in range(6)]
            assert {len(tokens) for tokens in await asyncio.gather(*rollouts)} == {TOKENS}
        assert all(seen(sim) for sim in sims)
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            await areal.rollout(PROMPT, TOKENS, lora="policy-v1")


async def test_group_of_several_engines_cannot_be_set_up_through_one_address(site: Site) -> None:
    """Refused with advice, without a call to an engine; with a single engine it succeeds."""
    async with AReaL(site.url) as areal, site.engines("sglang") as sims:
        refused = await areal.join_group(1)
        assert refused.status_code == 409
        assert "X-Worker-Id" in refused.json()["error"]["message"]
        assert not any(calls(sim, "/init_weights_update_group") for sim in sims)
        await site.client.delete(f"/workers/{sims[1].url}")
        assert (await areal.join_group(1)).status_code == 200
        assert len(calls(sims[0], "/init_weights_update_group")) == 1
