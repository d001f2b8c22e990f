"""The simulated vLLM's control routes."""

from __future__ import annotations

import pytest

from gateway.sim import SimConfig, SimServer
from tests.sim.calls import JSON, begin, control, generate
from tests.sim.client import ask


async def test_key_guards_only_some_prefixes() -> None:
    """/v1 and /inference; the rest is open."""
    key = [*JSON, ("Authorization", "Bearer k")]
    async with SimServer("vllm", SimConfig(api_key="k")) as sim:
        assert (await generate(sim)).status == 401
        assert (await generate(sim, headers=key[1:])).status == 200
        assert (await control(sim, "/v1/models", "GET")).status == 401
        assert (await ask(sim.port, "/v1/models", method="GET", headers=key)).status == 200
        assert (await control(sim, "/metrics", "GET")).status == 200
        assert (await control(sim, "/is_paused", "GET")).status == 200


async def test_development_routes_can_be_absent() -> None:
    """As on a server started without the development mode."""
    async with SimServer("vllm", SimConfig(dev_mode=False)) as sim:
        for path in ("/pause", "/sleep", "/abort_requests", "/reset_prefix_cache"):
            assert (await control(sim, path)).status == 404


async def test_development_abort_without_ids_aborts_everything() -> None:
    async with SimServer("vllm", SimConfig(token_delay=0.005)) as sim:
        clients = [await begin(sim, 3000) for _ in range(2)]
        await sim.until(lambda: sim.running == 2)
        answer = await control(sim, "/abort_requests")
        assert sim.aborts[0].everything
        for client in clients:
            client.leave()
    assert answer.json == {"status": "aborted", "aborted": 2}


async def test_sleep_refuses_and_wake_up_serves() -> None:
    async with SimServer("vllm") as sim:
        asleep = await control(sim, "/sleep?level=2")
        result = await control(sim, "/is_sleeping", "GET")
        refused = await generate(sim)
        half = await control(sim, "/wake_up?tags=weights")
        assert (await generate(sim)).status == 503
        awake = await control(sim, "/wake_up?tags=kv_cache")
        assert (await generate(sim)).status == 200
        wrong = await control(sim, "/sleep?level=9")
    assert asleep.json == {"status": "sleeping", "level": 2} and result.json == {"is_sleeping": True}
    assert refused.status == 503
    assert half.json == {"status": "sleeping", "tags": ["weights"]}
    assert awake.json == {"status": "awake", "tags": ["kv_cache"]}
    assert wrong.status == 400


async def test_weight_update_sets_the_version() -> None:
    async with SimServer("vllm") as sim:
        await control(sim, "/start_weight_update")
        await control(sim, "/finish_weight_update", weight_version="v7")
        info = (await control(sim, "/weight_info", "GET")).json
        updated = (await control(sim, "/update_weight_version", new_version="v8")).json
        versions = (await generate(sim, 2)).json["choices"][0]["weight_versions"]
    assert info == {"weight_version": "v7"}
    assert updated == {"success": True, "new_version": "v8"}
    assert versions == [{"version": "v8", "start": 0, "end": 2}]


async def test_prefix_cache_is_reset_when_idle_or_forced() -> None:
    config = SimConfig(token_delay=0.005, enable_prompt_tokens_details=True, page_size=1)
    async with SimServer("vllm", config) as sim:
        client = await begin(sim, 3000)
        await sim.until(lambda: sim.running == 1)
        busy = await control(sim, "/reset_prefix_cache")
        forced = await control(sim, "/reset_prefix_cache?reset_running_requests=true")
        client.leave()
        await sim.idle()
        idle = await control(sim, "/reset_prefix_cache")
        details = (await generate(sim, 1)).json["usage"]["prompt_tokens_details"]
    assert [answer.json["success"] for answer in (busy, forced, idle)] == [False, True, True]
    assert details == {"cached_tokens": 0}


async def test_adapter_is_a_model_once_loaded() -> None:
    """An unknown model is a 404 that lists the known ones."""
    async with SimServer("vllm", SimConfig(enable_lora=True)) as sim:
        unknown = await generate(sim, model="a")
        loaded = await control(sim, "/v1/load_lora_adapter", lora_name="a", lora_path="/a")
        served = await generate(sim, model="a")
        cards = (await control(sim, "/v1/models", "GET")).json["data"]
        await control(sim, "/v1/unload_lora_adapter", lora_name="a")
        gone = await generate(sim, model="a")
    assert unknown.status == gone.status == 404
    assert unknown.json["error"]["message"] == "The model `a` does not exist. Valid aliases: sim."
    assert (loaded.status, served.json["model"]) == (200, "a")
    assert [(card["id"], card["parent"]) for card in cards] == [("sim", None), ("a", "sim")]


async def test_metrics_count_what_runs_and_what_ended() -> None:
    """Aborts stay at zero there, as in the real one."""
    async with SimServer("vllm", SimConfig(token_delay=0.002)) as sim:
        await generate(sim, 3)
        client = await begin(sim, 3000)
        await sim.until(lambda: sim.running == 1)
        text = (await control(sim, "/metrics", "GET")).body.decode()
        client.leave()
    assert 'vllm:num_requests_running{engine="0",model_name="sim"} 1.0' in text
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="sim"} 1.0' in text
    assert text.count("# TYPE vllm:request_success_total") == 1


@pytest.mark.parametrize(
    ("path", "where", "kind"),
    [
        ("/pause?mode=zzz", "query.mode", "literal_error"),
        ("/pause?clear_cache=perhaps", "query.clear_cache", "bool_parsing"),
        ("/sleep?level=x", "query.level", "int_parsing"),
        ("/sleep?level=9", "query.level", "less_than_equal"),
        ("/reset_prefix_cache?reset_running_requests=x", "query.reset_running_requests", "bool_parsing"),
        ("/update_weight_version", "body.new_version", "missing"),
        ("/init_weight_transfer_engine", "body.init_info", "missing"),
        ("/update_weights", "body.update_info", "missing"),
    ],
)
async def test_wrong_argument_is_refused_by_its_name(path: str, where: str, kind: str) -> None:
    async with SimServer("vllm") as sim:
        answer = await control(sim, path)
        assert not (await control(sim, "/is_paused", "GET")).json["is_paused"]
    error = answer.json["error"]
    assert (answer.status, error["param"], kind in error["message"]) == (400, where, True)
