"""The simulated SGLang's control routes."""

from __future__ import annotations

import asyncio

import pytest

from gateway.sim import SimConfig, SimServer
from tests.sim.calls import JSON, begin, control, generate
from tests.sim.client import Answer, Client, ask


@pytest.mark.virtual_time
async def test_health_takes_a_second_unless_it_is_fast() -> None:
    """The real engine generates a token for it; /ready is at once. Both are 503 while the engine starts."""
    loop = asyncio.get_running_loop()
    async with SimServer("sglang") as sim:
        start = loop.time()
        assert (await control(sim, "/ready", "GET")).status == 200
        assert loop.time() == start
        assert (await control(sim, "/health", "GET")).status == 200
        assert loop.time() >= start + 1.0
    async with SimServer("sglang", SimConfig(start_up=1, fast_health=True)) as sim:
        assert (await control(sim, "/health", "GET")).status == 503
        await asyncio.sleep(1)
        assert (await control(sim, "/health", "GET")).status == 200


async def test_keys_guard_what_the_engine_guards() -> None:
    """Health is open, information needs the key, control needs the admin key if there is one."""
    config = SimConfig(api_key="k", admin_api_key="admin", fast_health=True)
    key = [*JSON, ("Authorization", "bearer k")]
    admin = [*JSON, ("Authorization", "Bearer admin")]
    async with SimServer("sglang", config) as sim:
        assert (await control(sim, "/health", "GET")).status == 200
        refused = await control(sim, "/server_info", "GET")
        assert (await ask(sim.port, "/server_info", method="GET", headers=key)).status == 200
        assert (await ask(sim.port, "/nowhere", method="GET")).status == 401
        with_key = await ask(sim.port, "/abort_request", b"{}", headers=key)
        with_admin = await ask(sim.port, "/abort_request", b"{}", headers=admin)
        assert (await ask(sim.port, "/generate", b"{}", headers=admin)).status == 401
    assert (refused.status, refused.body) == (401, b'{"error":"Unauthorized"}')
    assert (with_key.status, with_admin.status) == (401, 200)


async def test_loads_count_what_runs_and_waits() -> None:
    """Sections on request; an unknown one is a 500, an unknown rank an empty list."""
    async with SimServer("sglang", SimConfig(token_delay=0.005, max_running=1)) as sim:
        clients = [await begin(sim, 3000) for _ in range(3)]
        await sim.until(lambda: sim.waiting == 2)
        load = (await control(sim, "/v1/loads?include=core", "GET")).json["loads"][0]
        unknown = await control(sim, "/v1/loads?include=nonsense", "GET")
        other_rank = (await control(sim, "/v1/loads?dp_rank=3", "GET")).json
        for client in clients:
            client.leave()
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (1, 2)
    assert load["num_used_tokens"] >= 3 and "memory" not in load
    assert unknown.status == 500 and other_rank["loads"] == []


async def test_flush_cache_needs_an_idle_engine() -> None:
    async with SimServer("sglang", SimConfig(token_delay=0.005)) as sim:
        await generate(sim, 1)
        client = await begin(sim, 20)
        await sim.until(lambda: sim.running == 1)
        busy = await control(sim, "/flush_cache")
        late = await control(sim, "/flush_cache?timeout=0.01")
        waited = await control(sim, "/flush_cache?timeout=5")
        assert (await client.answer()).status == 200
        client.leave()
        cached = (await generate(sim, 1)).json["meta_info"]["cached_tokens"]
        bad = await control(sim, "/flush_cache?timeout=soon")
    assert (busy.status, waited.status, cached) == (400, 200, 0)
    assert (late.status, late.body) == (400, b"Timed out waiting for idle state.")
    assert bad.status == 400


async def test_weights_from_disk_set_the_version_and_empty_the_cache() -> None:
    """A missing path is a 400. The engine then reports the path as its name, and its first name in
    /server_info.
    """
    async with SimServer("sglang") as sim:
        await generate(sim, 1)
        missing = await control(sim, "/update_weights_from_disk")
        done = await control(sim, "/update_weights_from_disk", model_path="/m", weight_version="7")
        result = (await control(sim, "/model_info", "GET")).json
        started = (await control(sim, "/server_info", "GET")).json
        meta = (await generate(sim, 1)).json["meta_info"]
    assert missing.status == 400
    assert done.json["success"] is True and done.json["num_paused_requests"] == 0
    assert done.json["message"] == "Succeeded to update model weights. Weight version updated to 7."
    assert (result["weight_version"], result["served_model_name"]) == ("7", "/m")
    assert (started["weight_version"], started["served_model_name"]) == ("default", "sim")
    assert (meta["weight_version"], meta["cached_tokens"]) == ("7", 0)


async def test_adapters_load_serve_and_unload() -> None:
    async with SimServer("sglang", SimConfig(enable_lora=True)) as sim:
        before = await generate(sim, lora_path="a")
        loaded = await control(sim, "/load_lora_adapter", lora_name="a", lora_path="/a")
        served = await generate(sim, lora_path="a")
        models = (await control(sim, "/v1/models", "GET")).json["data"]
        unloaded = await control(sim, "/unload_lora_adapter", lora_name="a")
        again = await control(sim, "/unload_lora_adapter", lora_name="a")
    assert before.status == 400 and "never been loaded: a" in before.json["error"]["message"]
    assert loaded.json["loaded_adapters"] == {"a": "/a"}
    assert [card["parent"] for card in models] == [None, "sim"]
    assert (served.status, unloaded.status, again.status) == (200, 200, 400)


async def test_metrics_are_served_only_where_switched_on() -> None:
    async with SimServer("sglang") as sim:
        assert (await control(sim, "/metrics", "GET")).status == 404
    async with SimServer("sglang", SimConfig(enable_metrics=True)) as sim:
        await generate(sim, 4)
        text = (await control(sim, "/metrics", "GET")).body.decode()
    assert 'sglang:generation_tokens_total{model_name="sim"} 4.0' in text
    assert 'sglang:num_running_reqs{model_name="sim"} 0.0' in text


RELEASE, TAKE_BACK = "/release_memory_occupation", "/resume_memory_occupation"


async def test_memory_is_released_and_resumed_in_parts() -> None:
    async with SimServer("sglang") as sim:
        answers = [
            await control(sim, RELEASE),
            await control(sim, TAKE_BACK, tags=["weights"]),
            await control(sim, TAKE_BACK, tags=["kv_cache", "cuda_graph"]),
        ]
    assert {(answer.status, answer.body) for answer in answers} == {(200, b"null")}


async def test_memory_that_was_not_released_ends_the_engine() -> None:
    async with SimServer("sglang") as sim:
        client = await Client.connect(sim.port)
        client.send(TAKE_BACK, b'{"tags": ["weights"]}', headers=JSON)
        assert await sim.exited() == 1
        client.leave()


async def test_memory_of_a_busy_engine_cannot_be_released() -> None:
    """It crashes; paused, with its requests back in the queue, it does not."""
    async with SimServer("sglang", SimConfig(token_delay=0.005)) as sim:
        running = await begin(sim, 3000)
        await sim.until(lambda: sim.running == 1)
        await control(sim, "/pause_generation", mode="retract")
        assert (await control(sim, "/flush_cache")).status == 200
        assert (await control(sim, RELEASE)).status == 200
        assert (await control(sim, TAKE_BACK)).status == 200
        await control(sim, "/continue_generation")
        await sim.until(lambda: sim.running == 1)
        client = await Client.connect(sim.port)
        client.send(RELEASE, b"{}", headers=JSON)
        assert await sim.exited() == 1
        for each in (client, running):
            each.leave()


async def test_body_of_a_control_call_is_checked_as_the_struct_behind_it() -> None:
    """It must exist, be an object, and have the required fields."""
    path = "/update_weight_version"
    async with SimServer("sglang") as sim:
        none = await ask(sim.port, path, b"", headers=JSON)
        no_object = await ask(sim.port, path, b"[1]", headers=JSON)
        incomplete = await control(sim, path, abort_all_requests="perhaps")
        plain = await ask(sim.port, "/abort_request", b'{"rid":"x"}')
        many = await control(sim, "/abort_request", rid=["a", "b"])
    assert {answer.status for answer in (none, no_object, incomplete, plain, many)} == {400}
    assert "{'type': 'missing', 'loc': ('body',), 'msg': 'Field required', 'input': None}" in message(none)
    assert message(no_object).startswith("2 validation errors:\n  {'type': 'is_instance_of'")
    place = "'function-after[build_struct(), UpdateWeightVersionReqInput]'"
    assert f"'type': 'missing', 'loc': ('body', {place}, 'new_version')" in message(incomplete)
    assert f"'type': 'bool_parsing', 'loc': ('body', {place}, 'abort_all_requests')" in message(incomplete)
    assert "'type': 'string_type'" in message(many)


def message(answer: Answer) -> str:
    return str(answer.json["message"])
