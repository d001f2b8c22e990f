"""A reply through the gateway equals the engine's direct reply."""

from __future__ import annotations

import httpx
import pytest

from tests.engines.front import ID, PROMPT, Front, Json, Reply, events, shapes

OTHER = [9, 77, 310, 44]


def sglang_body(sampling: Json, **fields: object) -> Json:
    """Return a request with ``rid``, ``input_ids`` and greedy sampling, unless overridden."""
    sampling = {"temperature": 0, "max_new_tokens": 12, **sampling}
    return {"rid": ID, "input_ids": PROMPT, "sampling_params": sampling, **fields}


def vllm_body(sampling: Json, **fields: object) -> Json:
    """Return a request with ``request_id``, ``token_ids`` and greedy sampling, unless overridden."""
    sampling = {"temperature": 0, "max_tokens": 12, **sampling}
    return {"request_id": ID, "model": "tiny", "token_ids": PROMPT, "sampling_params": sampling, **fields}


SGLANG: dict[str, Json] = {
    "ids": sglang_body({}),
    "no id": {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 4}},
    "text": {"rid": ID, "text": "Hello", "sampling_params": {"temperature": 0, "max_new_tokens": 12}},
    "logprobs": sglang_body({}, return_logprob=True),
    "top logprobs": sglang_body({}, return_logprob=True, top_logprobs_num=3),
    "logprobs of ids": sglang_body({}, return_logprob=True, token_ids_logprob=[5, 9]),
    "logprobs as text": sglang_body({}, return_logprob=True, return_text_in_logprobs=True),
    "prompt logprobs": sglang_body({}, return_logprob=True, logprob_start_len=0, top_logprobs_num=2),
    "scoring": sglang_body({"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0),
    "two samples": sglang_body({"n": 2}),
    "stop token": sglang_body({"stop_token_ids": [305]}),
    "stop string": sglang_body({"stop": ["1"]}),
    "end of sequence": sglang_body({"logit_bias": {"2": 1000}}),
    "batch": sglang_body({}, rid=[ID + "-a", ID + "-b"], input_ids=[PROMPT, OTHER]),
    "batch under one id": sglang_body({}, input_ids=[PROMPT, OTHER]),
    "batch of one": sglang_body({}, input_ids=[PROMPT]),
    "batch of two samples": sglang_body({"n": 2}, rid=None, input_ids=[PROMPT, OTHER], return_logprob=True),
    "batch of texts": {
        "text": ["Hello", "world"],
        "sampling_params": {"temperature": 0, "max_new_tokens": 6},
    },
    "unknown fields": sglang_body({}, not_a_field={"deep": [1, 2.50, 10**30]}),
}

VLLM: dict[str, Json] = {
    "ids": vllm_body({}),
    "no model": {
        "request_id": ID,
        "token_ids": PROMPT,
        "sampling_params": {"temperature": 0, "max_tokens": 4},
    },
    "logprobs": vllm_body({"logprobs": 0}),
    "top logprobs": vllm_body({"logprobs": 3}),
    "prompt logprobs": vllm_body({"prompt_logprobs": 2}),
    "two samples": vllm_body({"n": 2, "temperature": 1, "seed": 7}),
    "stop token": vllm_body({"stop_token_ids": [305]}),
    "stop string": vllm_body({"stop": ["1"]}),
    "end of sequence": vllm_body({"allowed_token_ids": [2]}),
    "usage": vllm_body({}, stream_options={"include_usage": True}),
    "usage all along": vllm_body({}, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    "unknown fields": vllm_body({}, not_a_field={"deep": [1, 2.50, 10**30]}),
}

#: Requests to both sides before the comparison, so that the prefix cache is equally warm for both.
WARM_UP = 1


def assert_same_head(direct: Reply, through: Reply) -> None:
    """Check the status and all headers that do not belong to one connection or one moment."""
    assert through.status == direct.status
    own = {"connection", "content-length", "date", "server", "transfer-encoding", "x-request-id"}
    kept = [
        {name: value for name, value in reply.headers.items() if name not in own}
        for reply in (direct, through)
    ]
    assert kept[1] == kept[0]
    assert [len(through.headers.get_list(name)) for name in ("date", "server")] == [1, 1]
    assert ("content-length" in through.headers) != ("transfer-encoding" in through.headers)


async def assert_same_unary(client: httpx.AsyncClient, front: Front, body: Json) -> None:
    if front.kind == "vllm":
        body = {key: value for key, value in body.items() if key != "stream_options"}
    for _ in range(WARM_UP):
        await front.both(client, body)
    direct, through = await front.both(client, body)
    assert direct.status == 200, direct.content
    assert_same_head(direct, through)
    assert_same(front.comparable(direct.json()), front.comparable(through.json()))


async def assert_same_stream(client: httpx.AsyncClient, front: Front, body: Json) -> None:
    body = {**body, "stream": True}
    for _ in range(WARM_UP):
        await front.both(client, body)
    direct, through = await front.both(client, body)
    assert_same_head(direct, through)
    assert direct.headers["content-type"].startswith("text/event-stream")
    expected, seen = events(direct.content), events(through.content)
    assert shapes(seen) == shapes(expected)
    assert_same(front.folded(expected), front.folded(seen))


def assert_same(expected: object, seen: object) -> None:
    """Check equality, including the order of keys."""
    assert seen == expected
    assert repr(seen) == repr(expected)


@pytest.mark.parametrize("case", SGLANG)
async def test_sglang_unary_reply_equals_the_direct_one(
    client: httpx.AsyncClient, sglang: Front, case: str
) -> None:
    """A unary reply is the engine's, except for ids that it makes itself and timings."""
    await assert_same_unary(client, sglang, SGLANG[case])


@pytest.mark.parametrize("case", SGLANG)
async def test_sglang_stream_equals_the_direct_one(
    client: httpx.AsyncClient, sglang: Front, case: str
) -> None:
    """A stream has the engine's events, in either stream mode."""
    await assert_same_stream(client, sglang, SGLANG[case])


@pytest.mark.parametrize("case", VLLM)
async def test_vllm_unary_reply_equals_the_direct_one(
    client: httpx.AsyncClient, vllm: Front, case: str
) -> None:
    """A unary reply is the engine's, except for the time of its creation."""
    await assert_same_unary(client, vllm, VLLM[case])


@pytest.mark.parametrize("case", VLLM)
async def test_vllm_stream_equals_the_direct_one(client: httpx.AsyncClient, vllm: Front, case: str) -> None:
    """A stream has the engine's events."""
    await assert_same_stream(client, vllm, VLLM[case])


async def test_stream_modes_are_distinguished(client: httpx.AsyncClient, sglang: Front) -> None:
    """Cumulative events grow and incremental ones do not: the fleet under test really has both modes."""
    reply = await sglang.ask(client, sglang.through, sglang.body(ID, 40, stream=True))
    lengths = [len(event["output_ids"]) for event in events(reply.content)]
    assert (lengths[-1] == 40) is (sglang.kind == "sglang")
    assert (sum(lengths) == 40) is (sglang.kind == "sglang-incremental")


async def test_sglang_put_equals_post(client: httpx.AsyncClient, sglang: Front) -> None:
    """PUT is the engine's other method for the same request."""
    body = sglang.body(ID, 6, stream=False)
    replies = [await sglang.ask(client, sglang.through, body, verb) for verb in ("POST", "PUT")]
    assert [reply.status for reply in replies] == [200, 200]
    assert_same(*(sglang.comparable(reply.json()) for reply in replies))


async def test_sglang_id_from_the_header_comes_back(client: httpx.AsyncClient, sglang: Front) -> None:
    """A request without ``rid`` has the id of its X-Request-Id."""
    body = sglang.body("", 4, stream=False)
    del body["rid"]
    reply = await client.post(
        sglang.through + sglang.path, json=body, headers={"x-request-id": "from-the-header"}
    )
    assert sglang.public_id(reply.json()) == "from-the-header"


async def test_vllm_id_from_the_header_wins(client: httpx.AsyncClient, vllm: Front) -> None:
    """X-Request-Id has priority over the body's id, as at the engine."""
    headers = {"x-request-id": "from-the-header"}
    replies = await vllm.both(client, vllm.body("from-the-body", 4, stream=False), **headers)
    assert [vllm.public_id(reply.json()) for reply in replies] == ["from-the-header"] * 2


async def test_request_without_an_id_gets_one(client: httpx.AsyncClient, sglang: Front, vllm: Front) -> None:
    """Two requests without an id get two ids."""
    for front in (sglang, vllm):
        body = front.body("", 4, stream=False)
        body.pop("rid", None)
        body.pop("request_id", None)
        seen = {front.public_id((await front.ask(client, front.through, body)).json()) for _ in range(2)}
        assert len(seen) == 2
        assert all(seen)
