"""What simulated engines get of the frameworks' requests, and what the frameworks get of their replies."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from typing import Any

import pytest

from gateway.sim import Reply
from tests.clients.libraries import Framework
from tests.clients.sglang import (
    ROUTING_KEY,
    AReaL,
    LmEval,
    Miles,
    MilesSessions,
    NeMoRL,
    Roll,
    Slime,
    Strands,
    Verl,
)
from tests.clients.site import PROMPT, TOKENS, Site, as_sent, calls, seen
from tests.clients.vllm import GENERATE, RENDER, SESSION, TRL, PrimeRL, Rllm, SkyRL, Vime

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
#: Headers of a library that belong to one hop, or that the gateway replaces.
HOP = {"connection", "accept-encoding"}
PICTURE = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 16_000).decode()


@pytest.mark.parametrize(
    "framework", [Slime, NeMoRL, Roll, Verl, Strands, AReaL, LmEval, Vime, PrimeRL, SkyRL, TRL]
)
async def test_rollout_is_spread_and_every_body_arrives_as_it_was_written(
    site: Site, framework: type[Framework]
) -> None:
    """All at once, however few connections the client has; with the headers of its library and its keys."""
    async with framework(site.url) as client, site.engines(framework.KIND) as sims:
        client.keyed = bool(client.KEY)
        samples = await asyncio.gather(*(client.sample([*PROMPT, n], TOKENS) for n in range(150)))
        assert {(len(sample.tokens), sample.status) for sample in samples} == {(TOKENS, "length")}
        arrivals, sent = seen(*sims), [body for body in client.sent if body]
        assert len(arrivals) == len(sent) == 150 and min(len(seen(sim)) for sim in sims) > 40
        assert sorted(as_sent(arrival, sent) for arrival in arrivals) == sorted(sent)
        assert len({arrival.header(client.KEY) for arrival in arrivals}) == (150 if client.keyed else 1)
        own = {name: value for name, value in client.http.headers.items() if name not in HOP}
        assert all({name: arrival.header(name) for name in own} == own for arrival in arrivals)
        assert client.failures == []


async def test_every_call_is_a_connection_of_its_own(site: Site) -> None:
    """The gateway closes the connection as requested, and keeps its own connections to the engines."""
    async with AReaL(site.url) as areal, site.engines("sglang") as sims:
        closed = await areal.http.get(f"{site.url}/health")
        assert (closed.status_code, closed.headers["connection"]) == (200, "close")
        opened = sum(sim.accepted for sim in sims)
        for _ in range(10):
            await areal.sample(PROMPT, TOKENS)
        # Probes use the same pool; ten consecutive requests do not need ten more connections.
        assert sum(sim.accepted for sim in sims) - opened < 10


@pytest.mark.parametrize("framework", [Miles, SkyRL])
async def test_requests_with_one_key_are_on_one_engine_until_it_dies(
    site: Site, framework: type[Framework]
) -> None:
    """Then all of them continue on another engine, without a failure that the client would see."""
    async with framework(site.url) as client, site.engines(framework.KIND) as sims:
        # Fewer requests at once than could make a worker overloaded.
        client.keyed, keys = True, [f"sample-{number}" for number in range(5)]
        path, prompt = (GENERATE, "token_ids") if framework is SkyRL else ("/generate", "input_ids")
        body = {prompt: PROMPT, "sampling_params": {}}

        async def turns() -> list[Counter[str | None]]:
            await asyncio.gather(
                *(client.post(path, body, client.key(key)) for key in keys for _ in range(3))
            )
            return [Counter(arrival.header(client.KEY) for arrival in seen(sim)) for sim in sims]

        first, second = await turns()
        assert first + second == dict.fromkeys(keys, 3) and not first & second
        await sims[0].kill()
        assert set((await turns())[1]) == set(keys)
        assert client.failures == []


async def test_images_arrive_intact(site: Site) -> None:
    """Text and over ten megabytes of data URLs in place of ids."""
    async with Slime(site.url) as slime, site.engines("sglang", 1) as (sim,):
        await slime.post("/generate", slime.body("what is this", TOKENS, [PICTURE, PICTURE]))
        (arrival,) = seen(sim)
        assert json.loads(arrival.body)["image_data"] == [PICTURE, PICTURE]


@pytest.mark.parametrize("framework", [Vime, TRL])
async def test_images_are_rendered_and_generated_in_one_session(
    site: Site, framework: type[Vime | TRL]
) -> None:
    """Both through the gateway, on one engine if there is a key; the engine gets the renderer's output."""
    features = {"mm_hashes": {"image": ["abc"]}, "kwargs_data": {"image": [None]}}
    rendered = Reply(body=json.dumps({"token_ids": PROMPT, "features": features}).encode())
    async with framework(site.url) as client, site.engines("vllm") as sims:
        client.keyed = framework is Vime
        for sim in sims:
            sim.behave(rendered, times=8, path=RENDER)
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        looked = await asyncio.gather(*(client.look([picture], TOKENS) for _ in range(8)))
        assert {len(sample.tokens) for sample in looked} == {TOKENS}
        for sim in sims:
            keys = [{one.header(SESSION) for one in arrivals} for arrivals in (calls(sim, RENDER), seen(sim))]
            assert keys[0] == keys[1]
        arrivals = seen(*sims)
        assert all(json.loads(arrival.body)["features"] == features for arrival in arrivals)
        if framework is TRL:
            ids = [f"generate-tokens-{json.loads(arrival.body)['request_id']}" for arrival in arrivals]
            assert [arrival.ids for arrival in arrivals] == [[id] for id in ids] and len(set(ids)) == 8


@pytest.mark.parametrize(
    ("framework", "path", "body"),
    [
        (SkyRL, "/tokenize", {"prompt": "hi"}),
        (SkyRL, "/detokenize", {"tokens": [7]}),
        (SkyRL, "/skyrl/v1/generate", {"token_ids": PROMPT}),
        (SkyRL, CHAT, {"messages": []}),
        (SkyRL, RENDER, {"messages": []}),
        (SkyRL, COMPLETIONS, {"prompt": PROMPT, "max_tokens": 1, "return_token_ids": True}),
        (Rllm, CHAT, {"messages": [], "return_token_ids": True, "logprobs": True}),
        (Verl, "/classify", {"input": "good"}),
        (Verl, "/v1/embeddings", {"input": "good"}),
        (Verl, CHAT, {"messages": []}),
        (Verl, "/v1/score", {"input": "good"}),
    ],
)
async def test_other_data_routes_are_passed_on(
    site: Site, framework: type[Framework], path: str, body: dict[str, Any]
) -> None:
    """Body and header as they were sent; the reply is the engine's own, to the last blank."""
    content = b'{"choices": [],  "object":"list", "experts":"%b"}' % (b"A" * 200_000)
    async with framework(site.url) as client, site.engines(framework.KIND, 1) as (sim,):
        sim.behave(Reply(body=content), path=path)
        request = client.writes({"model": "tiny", **body})
        reply = await client.http.post(site.url + path, content=request, headers=client.key("traj-1"))
        assert reply.content == content
        (arrival,) = calls(sim, path)
        assert (arrival.body, arrival.header(SESSION)) == (request, "traj-1" if client.keyed else None)


async def test_agents_chat_goes_on_under_the_key_of_their_session(site: Site) -> None:
    """With the agent's own headers, and with all that the engine adds to the reply."""
    meta = {"output_token_logprobs": [[-0.25, 11, None], [-0.5, 2, None]]}
    choice = {"index": 0, "message": {"content": "ok"}, "finish_reason": "stop", "meta_info": meta}
    reply = {"id": "chatcmpl-1", "choices": [choice], "usage": {"completion_tokens": 2}}
    async with MilesSessions(site.url) as miles, site.engines("sglang", 1) as (sim,):
        sim.behave(Reply(body=json.dumps(reply).encode()), path=CHAT)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "logprobs": True}
        agents = {"X-Agent": "a1", "Authorization": "Bearer agent"}
        assert await miles.chat("session-7", body, agents) == reply
        (arrival,) = calls(sim, CHAT)
        lines = {**agents, ROUTING_KEY: "session-7"}
        assert {name: arrival.header(name) for name in lines} == lines
        assert json.loads(arrival.body) == body


async def test_streamed_turn_comes_event_by_event_to_its_end(site: Site) -> None:
    """The lines are the engine's own."""
    lines = ['data: {"choices": [{"index": 0, "delta": {"content": "ok"}}]}', "data: [DONE]"]
    body = "".join(f"{line}\n\n" for line in lines).encode()
    async with Rllm(site.url) as rllm, site.engines("vllm", 1) as (sim,):
        sim.behave(Reply(body=body, content_type="text/event-stream; charset=utf-8"), path=CHAT)
        asked = {"model": "tiny", "messages": [], "stream": True}
        assert [line async for line in rllm.lines(CHAT, asked)] == lines


async def test_experts_are_found_in_the_bytes_of_a_reply(site: Site) -> None:
    """Megabytes of them, unchanged: no part of the reply is parsed and written again."""
    experts = {"data": "abcd" * 1_000_000, "shape": [20_000, 4, 8], "dtype": "uint8"}
    body = {"request_id": "x", "choices": [{"index": 0, "routed_experts": experts}]}
    async with PrimeRL(site.url) as prime, site.engines("vllm", 1) as (sim,):
        sim.behave(Reply(body=json.dumps(body, separators=(",", ":")).encode()))
        assert await prime.experts(PROMPT) == b"abcd" * 1_000_000


async def test_samples_of_a_prompt_come_as_a_list(site: Site) -> None:
    """All from the one request that was sent."""
    async with Roll(site.url) as roll, site.engines("sglang") as sims:
        assert [len(sample.tokens) for sample in await roll.generate("rid", PROMPT, TOKENS, n=4)] == [
            TOKENS
        ] * 4
        (arrival,) = seen(*sims)
        assert json.loads(arrival.body)["sampling_params"]["n"] == 4


async def test_prompts_are_completed_in_one_call(site: Site) -> None:
    """A list of lists; the choices are in its order."""
    choices = [{"index": index, "token_ids": [index]} for index in range(3)]
    async with TRL(site.url) as trl, site.engines("vllm") as sims:
        for sim in sims:
            sim.behave(Reply(body=json.dumps({"choices": choices}).encode()), path=COMPLETIONS)
        assert await trl.complete([[*PROMPT, index] for index in range(3)], TOKENS) == [[0], [1], [2]]
        (arrival,) = [call for sim in sims for call in calls(sim, COMPLETIONS)]
        assert b'"prompt": [[432, 402, 5, 0], [432, 402, 5, 1], [432, 402, 5, 2]]' in arrival.body


async def test_model_can_say_that_it_sees(site: Site) -> None:
    """The engine's own information about its model is relayed."""
    async with Strands(site.url) as strands, site.engines("sglang", 1) as (sim,):
        sim.behave(Reply(body=b'{"has_image_understanding":true}'), times=50, path="/model_info")
        assert await strands.sees_images()
