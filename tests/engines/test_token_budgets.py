"""A request that is longer than the engine's context is refused before the engine, in the engine's words."""

from __future__ import annotations

import httpx
import pytest

from scripts.engines.servers import CONTEXT
from tests.clients.site import PROMPT
from tests.engines.front import ID, Front, Json, events

LIMIT = int(CONTEXT)


def body_of(front: Front, prompt: int, reply: int, *, stream: bool) -> Json:
    ids = (PROMPT * prompt)[:prompt]
    return front.body(ID, reply, stream=stream, **{"token_ids" if front.kind == "vllm" else "input_ids": ids})


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("prompt", [LIMIT, LIMIT + 900])
async def test_prompt_over_the_context_is_a_400_in_the_engines_words(
    client: httpx.AsyncClient, front: Front, prompt: int, stream: bool
) -> None:
    """Without the engine, which would begin a stream with its 200."""
    through = await front.ask(client, front.through, body_of(front, prompt, 1, stream=stream))
    direct = await front.ask(client, front.direct, body_of(front, prompt, 1, stream=False))
    assert (through.status, direct.status) == (400, 400)
    assert through.headers["content-type"] == direct.headers["content-type"]
    numbers = {"kind": "context_length", "limit": LIMIT, "actual": prompt}
    assert through.json() == {"error": {**direct.json()["error"], **numbers}}


async def test_reply_over_the_rest_of_the_context_is_a_400(client: httpx.AsyncClient, front: Front) -> None:
    """In the words of SGLang. vLLM has none: asked directly it makes the reply shorter."""
    body = body_of(front, LIMIT - 20, 21, stream=False)
    through, direct = [await front.ask(client, side, body) for side in (front.through, front.direct)]
    assert (through.status, direct.status) == (400, 200 if front.kind == "vllm" else 400)
    error = through.json()["error"]
    assert (error["kind"], error["limit"], error["actual"]) == ("context_length", LIMIT, LIMIT + 1)
    if front.kind != "vllm":
        assert error["message"] == direct.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_prompt_and_reply_that_fill_the_context_are_served(
    client: httpx.AsyncClient, front: Front, stream: bool
) -> None:
    """The scheduler of SGLang takes no prompt that leaves less room, and ends the reply a little early."""
    reply = 1 if front.kind == "vllm" else 7
    served = await front.ask(client, front.through, body_of(front, LIMIT - reply, reply, stream=stream))
    assert served.status == 200
    parts = events(served.content) if stream else [served.json()]
    assert 0 < front.tokens(parts) <= reply
