"""What crosses the gateway, in both directions, on both endpoints: the same bytes."""

from __future__ import annotations

import json

import httpx
import pytest

from gateway.sim import Reply, SimConfig, SimServer
from tests.support.gateway import generates, rig, sse
from tests.support.generate import KINDS, body_of


@pytest.mark.parametrize(
    ("path", "allowed", "members"),
    [
        (KINDS["sglang"], "POST, PUT", {"message"}),
        (KINDS["vllm"], "POST", {"message", "type", "param", "code"}),
        ("/v1/chat/completions", "POST", {"message", "type", "param", "code"}),
    ],
)
async def test_other_methods_are_refused_in_the_dialect_with_those_there_are(
    path: str, allowed: str, members: set[str]
) -> None:
    async with rig() as gateway:
        reply = await gateway.client.get(path)
        assert (reply.status_code, reply.headers["allow"]) == (405, allowed)
        error = reply.json()["error"]
        assert path in error["message"] and "POST" in error["message"]
        assert (set(error), error.get("code", 405)) == (members, 405)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "headers", "members"),
    [
        ("sglang", {"x-data-parallel-rank": "1"}, {}),
        ("sglang", {}, {"routed_dp_rank": 1}),
        ("sglang", {"x-data-parallel-rank": "1"}, {"routed_dp_rank": 0}),
        ("vllm", {"x-data-parallel-rank": "1"}, {}),
        ("vllm", {"x-data-parallel-rank": "-1"}, {}),
    ],
)
async def test_rank_out_of_range_is_refused_by_the_engine_alone_and_through_the_gateway(
    kind: str, headers: dict[str, str], members: dict[str, int], stream: bool
) -> None:
    """A stream has begun by then. SGLang reads it in the body only, where the gateway puts the header's."""
    body = body_of(kind, 2, stream, **members)
    direct = {**body, "routed_dp_rank": 1} if kind == "sglang" else body
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        async with httpx.AsyncClient(trust_env=False) as client:
            alone = await client.post(sim.url + KINDS[kind], json=direct, headers=headers)
        through = await gateway.client.post(KINDS[kind], json=body, headers=headers)
        assert (through.status_code, through.content) == (alone.status_code, alone.content)
        assert through.status_code == (200 if stream else 400) and b"out of range [0, 1)" in through.content
        good = {"x-data-parallel-rank": "0"}
        assert (await gateway.client.post(KINDS[kind], json=body_of(kind), headers=good)).status_code == 200


@pytest.mark.parametrize("status", [200, 400, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("kind", KINDS)
async def test_status_bytes_and_headers_of_a_reply_come_back_as_the_worker_sent_them(
    kind: str, status: int
) -> None:
    answer = b'{ "weight_version":1,"n":123456789012345678901234567890,"f":1e-7,"id":"x","a":1,"a":2}\n'
    headers = (("Retry-After", "7"), ("X-Worker", "a"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"))
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Reply(status=status, body=answer, headers=headers))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind))
        assert (reply.status_code, reply.content) == (status, answer)
        assert (reply.headers["retry-after"], reply.headers["x-worker"]) == ("7", "a")
        assert reply.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(("status", "body"), [(500, b"Internal Server Error"), (503, b"")])
@pytest.mark.parametrize("kind", KINDS)
async def test_plain_text_error_and_empty_body_are_passed_on(kind: str, status: int, body: bytes) -> None:
    text = "text/plain; charset=utf-8"
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Reply(status=status, body=body, content_type=text))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind))
        assert (reply.status_code, reply.content, reply.headers["content-type"]) == (status, body, text)
        assert len(generates(sim)) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_unary_reply_over_a_mebibyte_is_relayed_with_its_length(kind: str) -> None:
    answer = json.dumps({"text": "x" * 3_000_000, "output_ids": [1], "choices": [], "meta_info": {}}).encode()
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Reply(body=answer))
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind, rid="mine", request_id="mine"))
        assert reply.content == answer
        assert reply.headers["content-length"] == str(len(answer))


@pytest.mark.parametrize("mode", ["incremental", "cumulative"])
async def test_fleet_whose_servers_stream_in_two_ways_looks_like_one(mode: str) -> None:
    """Each event holds what is new, or all so far, whatever flag the worker was started with."""
    one, two = (SimConfig(incremental_streaming_output=flag) for flag in (False, True))
    async with SimServer("sglang", one) as cumulative, SimServer("sglang", two) as incremental:
        workers = cumulative.url, incremental.url
        async with rig(*workers, router_mode="round_robin", sglang_stream_mode=mode) as gateway:
            for _ in workers:
                reply = await gateway.client.post("/generate", json=body_of("sglang", 4, True))
                grown = [len(event["output_ids"]) for event in sse(reply.content)]
                assert grown == ([1, 1, 1, 1] if mode == "incremental" else [1, 2, 3, 4])
            assert len(generates(cumulative)) == len(generates(incremental)) == 1
