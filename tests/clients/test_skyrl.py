"""SkyRL's trajectories work with the gateway as its proxy."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.sim import Drop, Reply
from tests.clients.site import PAUSE, TOKENS, Site, calls, engines, seen
from tests.clients.skyrl import SESSION, Refused, SkyRL, forward

PROMPT = [432, 402, 5]
LIMIT = {"model": "sim", "prompt": PROMPT, "max_tokens": 1, "return_token_ids": True}


async def test_trajectories_run_turn_by_turn_and_say_goodbye(site: Site) -> None:
    """All turns of a trajectory go to one engine; reporting its end succeeds for any client."""
    async with SkyRL(site.url, PAUSE) as skyrl, site.engines("vllm") as sims:
        await skyrl.wait_for_health()

        async def trajectory(name: str) -> list[int]:
            history = [*PROMPT]
            for _ in range(3):
                choice = await skyrl.generate(name, history, TOKENS)
                history += choice["token_ids"]
            assert await skyrl.finish(name) == 200
            return history

        histories = await asyncio.gather(*(trajectory(f"traj-{number}") for number in range(8)))
        assert {len(history) for history in histories} == {3 + 3 * TOKENS}
        arrivals = seen(*sims)
        names = [arrival.header(SESSION) for arrival in arrivals]
        assert {name: names.count(name) for name in set(names)} == {f"traj-{n}": 3 for n in range(8)}
        on_each = [{arrival.header(SESSION) for arrival in seen(sim)} for sim in sims]
        assert not on_each[0] & on_each[1]
        assert await skyrl.finish("never-seen") == 200
        assert skyrl.broken == 0


async def test_replay_route_brings_packed_experts(site: Site) -> None:
    """Packed by the engine, under the same header."""
    experts = {"data": "AAAA" * 50_000, "shape": [5, 4, 8], "dtype": "uint8"}
    content = [{"token_id": 7, "logprob": -0.5}]
    choice = {
        "index": 0,
        "token_ids": [7],
        "finish_reason": "length",
        "logprobs": {"content": content},
        "routed_experts": experts,
    }
    async with SkyRL(site.url, PAUSE) as skyrl, site.engines("vllm", 1) as (sim,):
        sim.behave(Reply(body=json.dumps({"choices": [choice]}).encode()), path="/skyrl/v1/generate")
        assert await skyrl.generate("traj-1", PROMPT, 1, replay=True) == choice
        (arrival,) = calls(sim, "/skyrl/v1/generate")
        assert arrival.header(SESSION) == "traj-1"


@pytest.mark.parametrize(
    ("path", "body", "reply"),
    [
        ("/tokenize", {"model": "sim", "prompt": "hi"}, {"count": 1, "tokens": [7], "max_model_len": 8192}),
        ("/detokenize", {"model": "sim", "tokens": [7]}, {"prompt": "hi"}),
        ("/v1/chat/completions", {"model": "sim", "messages": []}, {"choices": [{"token_ids": [7]}]}),
        ("/v1/chat/completions/render", {"model": "sim", "messages": []}, {"token_ids": [7]}),
    ],
)
async def test_other_data_routes_are_passed_on(
    site: Site, path: str, body: dict[str, object], reply: dict[str, object]
) -> None:
    """With the trajectory's header; the reply is the engine's own."""
    async with SkyRL(site.url, PAUSE) as skyrl, site.engines("vllm", 1) as (sim,):
        sim.behave(Reply(body=json.dumps(reply).encode()), path=path)
        assert await skyrl.post(path, "traj-1", body) == reply
        (arrival,) = calls(sim, path)
        assert (arrival.header(SESSION), arrival.body) == ("traj-1", json.dumps(body).encode())


async def test_completions_are_forwarded_for_its_other_front_end(site: Site) -> None:
    """Another library uses the same route."""
    reply = {"choices": [{"text": "x", "token_ids": [7], "finish_reason": "length"}]}
    async with site.engines("vllm", 1) as (sim,):
        sim.behave(Reply(body=json.dumps(reply).encode()), path="/v1/completions")
        assert await forward(site.url, LIMIT) == reply


async def test_refusals_are_objects_with_a_message(site: Site) -> None:
    """Refusals of the gateway and of an engine; none of them is retried."""
    async with SkyRL(site.url, PAUSE) as skyrl, engines("vllm", 1) as (sim,):
        with pytest.raises(Refused, match="worker"):
            await skyrl.generate("traj-1", PROMPT, TOKENS)
        await site.serve(sim)
        with pytest.raises(Refused, match="max_tokens"):
            await skyrl.generate("traj-1", PROMPT, 0)
        assert skyrl.broken == 0


async def test_lost_reply_is_an_error_and_generated_once(site: Site) -> None:
    """The gateway does not retry a request that may have run, and reports the failure in JSON."""
    async with SkyRL(site.url, PAUSE) as skyrl, site.engines("vllm") as sims:
        for sim in sims:
            sim.behave(Drop())
        with pytest.raises(Refused):
            await skyrl.generate("traj-1", PROMPT, TOKENS)
        assert len(seen(*sims)) == 1
