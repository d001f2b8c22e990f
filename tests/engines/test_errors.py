"""An engine's refusals are relayed unchanged; a request that would end an engine never reaches it."""

from __future__ import annotations

import httpx
import pytest

from tests.engines.front import ID, PROMPT, Front, Json, events

TOO_LONG = [7] * 9000


def sglang_body(sampling: Json, **fields: object) -> Json:
    return {"rid": ID, "input_ids": PROMPT, "sampling_params": {"max_new_tokens": 4, **sampling}, **fields}


def vllm_body(sampling: Json, **fields: object) -> Json:
    sampling = {"max_tokens": 4, **sampling}
    return {"request_id": ID, "token_ids": PROMPT, "sampling_params": sampling, **fields}


SGLANG: dict[str, Json] = {
    "unknown sampling field": sglang_body({"max_tokens": 4}),
    "negative length": sglang_body({"max_new_tokens": -1}),
    "wrong type": sglang_body({"temperature": "hot"}),
    "temperature below zero": sglang_body({"temperature": -1}),
    "prompt over the context": sglang_body({}, input_ids=TOO_LONG),
    "length over the context": sglang_body({"max_new_tokens": 10_000}),
    "no prompt": {"rid": ID, "sampling_params": {}},
    "empty prompt": sglang_body({}, input_ids=[]),
}

VLLM: dict[str, Json] = {
    "temperature below zero": vllm_body({"temperature": -1}),
    "wrong type": vllm_body({"temperature": "hot"}),
    "too many logprobs": vllm_body({"logprobs": 100}),
    "greedy samples": vllm_body({"temperature": 0, "n": 2}),
    "id out of vocabulary": vllm_body({}, token_ids=[1, 512]),
    "prompt over the context": vllm_body({}, token_ids=TOO_LONG),
    "no prompt": {"request_id": ID, "sampling_params": {}},
    "empty prompt": vllm_body({}, token_ids=[]),
    "no sampling": {"request_id": ID, "token_ids": PROMPT},
}

#: Requests each of which ends the engine's process if it is sent there directly.
SGLANG_ENDING: dict[str, Json] = {
    "negative token": sglang_body({}, input_ids=[1, -1]),
    "empty text": {"text": "", "sampling_params": {"max_new_tokens": 4}},
    "empty item": sglang_body({}, rid=None, input_ids=[[1], []]),
    "negative start": sglang_body({}, return_logprob=True, logprob_start_len=-2),
}


async def assert_same_refusal(client: httpx.AsyncClient, front: Front, body: Json) -> None:
    direct, through = await front.both(client, body)
    assert through.status == direct.status
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert through.content == direct.content
    if direct.status == 200:
        assert "error" in events(direct.content)[-1], "the engine found nothing wrong"


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("case", SGLANG)
async def test_sglang_refusal_equals_the_direct_one(
    client: httpx.AsyncClient, sglang: Front, case: str, stream: bool
) -> None:
    """Status, type and every byte of an error are the engine's, also of one inside a stream."""
    await assert_same_refusal(client, sglang, {**SGLANG[case], "stream": stream})


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("case", VLLM)
async def test_vllm_refusal_equals_the_direct_one(
    client: httpx.AsyncClient, vllm: Front, case: str, stream: bool
) -> None:
    """Status, type and every byte of an error are the engine's, also of one inside a stream."""
    await assert_same_refusal(client, vllm, {**VLLM[case], "stream": stream})


async def test_refusals_do_not_count_against_the_worker(
    client: httpx.AsyncClient, sglang: Front, vllm: Front
) -> None:
    """After 25 refused requests the next valid one is served."""
    for front, bad in ((sglang, SGLANG["wrong type"]), (vllm, VLLM["wrong type"])):
        refused = [(await front.ask(client, front.through, bad)).status for _ in range(25)]
        assert set(refused) == {400}
        good = await front.ask(client, front.through, front.body(ID, 4, stream=False))
        assert good.status == 200


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
async def test_body_that_is_no_object_is_refused_in_the_engines_shape(
    client: httpx.AsyncClient, sglang: Front, vllm: Front, content: bytes
) -> None:
    """A body that is not a request gets a 400 that each engine's clients can read."""
    for front in (sglang, vllm):
        reply = await front.ask(client, front.through, content)
        assert reply.status == 400
        assert reply.headers["content-type"] == "application/json"
        assert isinstance(reply.json()["error"]["message"], str)


async def test_model_nobody_serves_is_the_engines_404(client: httpx.AsyncClient, vllm: Front) -> None:
    """An unknown model gets the status and the shape that the engine uses."""
    direct, through = await vllm.both(client, vllm.body(ID, 4, stream=False, model="other"))
    assert through.status == direct.status == 404
    assert through.json()["error"].keys() == direct.json()["error"].keys()


@pytest.mark.parametrize("case", SGLANG_ENDING)
async def test_sglang_survives_what_would_end_it(client: httpx.AsyncClient, sglang: Front, case: str) -> None:
    """The requests are refused with a 400, and the engine continues to serve."""
    reply = await sglang.ask(client, sglang.through, SGLANG_ENDING[case])
    assert reply.status == 400
    assert isinstance(reply.json()["error"]["message"], str)
    good = await sglang.ask(client, sglang.direct, sglang.body(ID, 4, stream=False))
    assert good.status == 200
