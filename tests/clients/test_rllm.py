"""rllm's gateway works with this one as its worker."""

from __future__ import annotations

import json

from gateway.sim import Reply
from tests.clients.rllm import RllmGateway
from tests.clients.site import Site, calls

PATH = "/v1/chat/completions"
BODY = {"model": "sim", "messages": [{"role": "user", "content": "hi"}]}


async def test_worker_stays_in_while_its_engines_come_and_go(site: Site) -> None:
    """It is healthy as long as the gateway runs."""
    async with RllmGateway(site.url) as rllm:
        assert await rllm.probe()
        async with site.engines("vllm", 1) as (sim,):
            assert await rllm.probe()
        assert await rllm.probe() and rllm.failures == 0


async def test_turn_comes_back_with_its_ids(site: Site) -> None:
    """With all that the engine adds to the reply, and with the headers of the agent."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "ok"},
        "finish_reason": "stop",
        "token_ids": [7],
        "logprobs": {"content": [{"token": "ok", "logprob": -0.1}]},
    }
    async with RllmGateway(site.url) as rllm, site.engines("vllm", 1) as (sim,):
        sim.behave(Reply(body=json.dumps({"choices": [choice]}).encode()), path=PATH)
        assert await rllm.chat(BODY, {"X-Session-ID": "agent-1"}) == choice
        (arrival,) = calls(sim, PATH)
        assert arrival.header("X-Session-ID") == "agent-1"
        assert json.loads(arrival.body)["return_token_ids"] is True


async def test_streamed_turn_comes_event_by_event_to_its_end(site: Site) -> None:
    """The lines are the engine's own."""
    lines = [b'data: {"choices": [{"index": 0, "delta": {"content": "ok"}}]}', b"data: [DONE]"]
    body = b"".join(line + b"\n\n" for line in lines)
    async with RllmGateway(site.url) as rllm, site.engines("vllm", 1) as (sim,):
        sim.behave(Reply(body=body, content_type="text/event-stream; charset=utf-8"), path=PATH)
        assert await rllm.stream(BODY) == lines
