"""The format in a gateway, in front of the simulated engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.sim import Reply, SimConfig
from gateway.sim.trtllm.engine import DISCONNECT_POLL
from tests.support.fleet import called, fleet, states
from tests.support.gateway import generates, sse, until

pytestmark = pytest.mark.virtual_time

PATH = "/trtllm/v1/completions"
SERVED: dict[str, Any] = {"endpoint": ("trtllm",), "probe_interval_secs": 0.05}
ASKED: dict[str, Any] = {"model": "sim", "prompt": [432, 402, 5], "max_tokens": 3, "temperature": 0}


async def test_token_ids_go_in_and_come_out_unary_and_streamed() -> None:
    """At a path of its own, by the worker that its probes identify; the client does not ask for ids."""
    async with fleet("trtllm", "vllm", **SERVED) as of:
        unary = await of.post(PATH, json=ASKED)
        assert unary.status_code == 200, unary.text
        ids = unary.json()["choices"][0]["token_ids"]
        streamed = sse((await of.post(PATH, json={**ASKED, "stream": True})).content)
        assert [id for event in streamed for id in event["choices"][0]["token_ids"]] == ids
        assert len(ids) == 3 and not generates(of.sims[1])


async def test_client_sees_its_id_and_usage_is_counted() -> None:
    async with fleet("trtllm", **SERVED) as of:
        reply = await of.post(PATH, json=ASKED, headers={"x-request-id": "job-1"})
        assert reply.headers["x-request-id"] == "job-1"
        assert of.sims[0].log[-1].header("x-request-id") == "job-1"
        metrics = (await of.gateway.client.get("/metrics")).text
        (tokens,) = (
            line for line in metrics.splitlines() if line.startswith("dynamo_frontend_output_tokens_total")
        )
        assert tokens.endswith(" 3")


async def test_error_of_the_engine_and_of_the_gateway_have_its_shape() -> None:
    async with fleet("trtllm", **SERVED) as of:
        refused = await of.post(PATH, json={**ASKED, "prompt": [99_999]})
        own = await of.post(PATH, content=b"{", headers={"content-type": "application/json"})
        for reply in (refused, own):
            assert reply.status_code == 400
            assert list(reply.json()) == ["object", "message", "type", "param", "code"]
        stream = {**ASKED, "stream": True}
        failed = await of.post(PATH, json=stream, headers={"x-sim-fail-after": "1"})
        assert json.loads(failed.content.split(b"\n\n")[-3][6:])["error"]["type"] == "server_error"


async def test_client_that_leaves_stops_the_generation_without_an_abort_call() -> None:
    """The engine looks once a second whether its client is still there."""
    async with fleet("trtllm", config=SimConfig(token_delay=0.01), **SERVED) as of:
        async with of.gateway.client.stream("POST", PATH, json={**ASKED, "max_tokens": 5000, "stream": True}):
            await of.sims[0].streaming()
        gone = await of.sims[0].client_gone()
        stopped = await of.sims[0].aborted()
        assert gone.client_gone is not None and stopped.aborted is not None
        assert stopped.aborted - gone.client_gone <= DISCONNECT_POLL + 0.01
        assert not of.sims[0].aborts


async def test_openai_routes_are_relayed_to_it_as_to_any_engine() -> None:
    async with fleet("trtllm", **SERVED) as of:
        reply = await of.post("/v1/completions", json=ASKED)
        assert reply.json()["choices"][0]["text"] and reply.json()["choices"][0]["token_ids"] is None


@pytest.mark.parametrize("enabled", [True, False])
async def test_load_is_read_from_the_iterations_only_without_metrics(enabled: bool) -> None:
    """Reading them takes them from other readers; so would a scrape, which goes elsewhere."""
    async with fleet("trtllm", config=SimConfig(enable_metrics=enabled), **SERVED) as of:
        await until(lambda: of.worker().vitals.reported is not None)
        scrape = (await of.gateway.client.get("/engine_metrics")).text
        assert ("trtllm_kv_cache_max_blocks{worker=" in scrape) is enabled
        assert bool(called(of.sims[0], "/metrics")) is not enabled


@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_over_a_length_that_was_set_reaches_no_worker(stream: bool) -> None:
    """A reply that would be longer is served: the engine cuts it short."""
    config = SimConfig(enable_metrics=True, max_model_len=32)
    async with fleet("trtllm", config=config, **SERVED) as of:
        refused = await of.post(PATH, json={**ASKED, "prompt": [5] * 32, "stream": stream})
        error = refused.json()
        assert (refused.status_code, error["kind"], error["limit"]) == (400, "context_length", 32)
        assert not generates(of.sims[0])
        served = await of.post(PATH, json={**ASKED, "prompt": [5] * 31, "max_tokens": 9, "stream": stream})
        assert served.status_code == 200 and b'"finish_reason":"length"' in served.content


async def test_card_of_an_engine_with_metrics_has_its_sizes() -> None:
    async with fleet("trtllm", config=SimConfig(enable_metrics=True), **SERVED) as of:
        card = of.worker().infos["trtllm"].card
        assert (card.context_length, card.kv_cache_block_size, card.total_kv_blocks) == (8192, 32, 31250)


async def test_other_calls_reach_the_engine_but_not_the_one_that_takes_its_events() -> None:
    gets = ("/perf_metrics", "/energy_metrics", "/version", "/server_info", "/v1/responses/r")
    async with fleet("trtllm", **SERVED) as of:
        for method, path in (("POST", "/update_weights"), *(("GET", path) for path in gets)):
            of.sims[0].behave(Reply(body=b'{ "own":1}'), times=99, path=path)
            reply = await of.gateway.client.request(method, path, json={})
            assert (reply.status_code, reply.content) == (200, b'{ "own":1}'), path
        assert (await of.post("/kv_cache_events")).status_code == 404
        assert not called(of.sims[0], "/kv_cache_events")


async def test_memory_is_released_and_the_worker_is_cordoned_meanwhile() -> None:
    async with fleet("trtllm", **SERVED) as of:
        assert (await of.post("/release_memory", json={"tags": []})).status_code == 200
        assert states(of) == ["held"]
        assert (await of.post("/resume_memory", json={"tags": []})).status_code == 200
        assert states(of) == ["ready"]
