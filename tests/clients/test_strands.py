"""Agents of strands-sglang work with the gateway."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.sim import Reply
from tests.clients.site import PAUSE, TOKENS, Site, as_sent, engines, seen
from tests.clients.strands import ContextFull, Fatal, Strands, Throttled
from tests.support.gateway import until

PROMPT = [432, 402, 5]


async def test_conversation_continues_with_its_history(site: Site) -> None:
    """Each turn sends all ids so far; the engine finds them in its cache, and nulls arrive as nulls."""
    async with Strands(site.url) as strands, site.engines("sglang", 1) as (sim,):
        assert await strands.healthy()
        history = PROMPT
        for turn in range(4):
            reply = await strands.turn(history, TOKENS)
            assert reply["meta_info"]["prompt_tokens"] == len(history)
            assert (reply["meta_info"]["cached_tokens"] > 0) is (turn > 0)
            history = [*history, *reply["output_ids"], 9]
        bodies = [json.loads(arrival.body) for arrival in seen(sim)]
        assert all(body["image_data"] is body["logprob_start_len"] is None for body in bodies)


async def test_body_of_another_library_arrives_with_its_blanks(site: Site) -> None:
    """Byte for byte, except for the id that the body does not contain."""
    async with Strands(site.url) as strands, site.engines("sglang", 1) as (sim,):
        await strands.turn(PROMPT, TOKENS)
        (arrival,) = seen(sim)
        assert (
            b'"skip_special_tokens": false}, "return_logprob": true, "logprob_start_len": null'
            in arrival.body
        )
        body = json.loads(arrival.body)
        del body["rid"]
        assert as_sent(arrival, json.dumps(body).encode())


async def test_model_can_say_that_it_sees(site: Site) -> None:
    """The engine's own information about its model is relayed."""
    async with Strands(site.url) as strands, site.engines("sglang", 1) as (sim,):
        assert not await strands.sees_images()
        sim.behave(Reply(body=b'{"has_image_understanding":true}'), times=50, path="/model_info")
        assert await strands.sees_images()


async def test_full_context_is_distinguished_from_other_errors(site: Site) -> None:
    """By the engine's own text, at the first try."""
    async with Strands(site.url, PAUSE) as strands, site.engines("sglang", 1, max_model_len=64) as (sim,):
        with pytest.raises(ContextFull):
            await strands.turn(list(range(5, 105)), TOKENS)
        assert strands.refused == [400]


async def test_missing_worker_is_no_fatal_error(site: Site) -> None:
    """It is retried until there is a worker, and no word of the refusal looks like a full context."""
    async with Strands(site.url, PAUSE) as strands, engines("sglang", 1) as (sim,):
        turn = asyncio.ensure_future(strands.turn(PROMPT, TOKENS))
        await until(lambda: bool(strands.refused))
        await site.serve(sim)
        assert len((await turn)["output_ids"]) == TOKENS
        assert set(strands.refused) == {503}


@pytest.mark.parametrize(
    ("status", "text", "ending"),
    [
        (404, "no such adapter", Fatal),
        (401, "key", Fatal),
        (400, "prompt is too long", ContextFull),
        (503, "busy", Throttled),
        (429, "slow down", Throttled),
    ],
)
async def test_status_of_an_engine_means_what_it_means_without_a_gateway(
    site: Site, status: int, text: str, ending: type[Exception]
) -> None:
    """Each status is relayed with its text, and a 4xx takes no engine out of service."""
    async with Strands(site.url, PAUSE) as strands, site.engines("sglang", 1) as (sim,):
        strands.TRIES = 3
        sim.behave(Reply(status=status, body=json.dumps({"error": {"message": text}}).encode()), times=3)
        with pytest.raises(ending, match=text):
            await strands.turn(PROMPT, TOKENS)
        assert len(strands.refused) == (3 if ending is Throttled else 1)
        assert (await site.workers())[sim.url]["is_healthy"]


async def test_many_agents_connect_at_once(site: Site) -> None:
    """Each has its own connection within its five seconds, and none is refused."""
    async with Strands(site.url) as strands, site.engines("sglang", token_delay=0.1) as sims:
        strands.TRIES = 1
        turns = [strands.turn([*PROMPT, index], 4) for index in range(150)]
        replies = await asyncio.gather(*turns)
        assert {len(reply["output_ids"]) for reply in replies} == {4}
        counts = [len(seen(sim)) for sim in sims]
        assert sum(counts) == 150 and min(counts) > 50
