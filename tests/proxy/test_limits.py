"""Limits on requests in flight and on what workers send, in a complete gateway."""

from __future__ import annotations

import asyncio
import json
from itertools import accumulate
from typing import Any

import httpx
import pytest

from gateway.sim import Pace, Raw, SimConfig, SimServer
from tests.support.gateway import (
    RawClient,
    Rig,
    all_released,
    arrived,
    generates,
    limit_hits,
    queued,
    rig,
    sse,
    until,
)
from tests.support.generate import JSON, KINDS, body_of

pytestmark = pytest.mark.virtual_time

CHAT = "/v1/chat/completions"


async def post(gateway: Rig, kind: str = "sglang", **members: Any) -> httpx.Response:
    return await gateway.client.post(KINDS[kind], json=body_of(kind, **members))


def peak(sim: SimServer) -> int:
    times = [(arrival.arrived or 0.0, 1) for arrival in generates(sim)]
    times += [(arrival.finished or 0.0, -1) for arrival in generates(sim)]
    return max(accumulate(step for _, step in sorted(times)))


# -- in flight in all


@pytest.mark.parametrize("code", [503, 429])
@pytest.mark.parametrize("kind", KINDS)
async def test_one_more_than_may_be_in_flight_is_refused_in_the_dialect(kind: str, code: int) -> None:
    """With the status that is asked for, before its body is read; the next one after an end is served."""
    async with SimServer(kind, SimConfig()) as sim:
        async with rig(sim.url, max_in_flight=1, overload_status_code=code) as gateway:
            sim.behave(Pace(prefill_base=60.0))
            first = await RawClient.connect(gateway.port)
            first.request(KINDS[kind], json.dumps(body_of(kind)).encode())
            await arrived(1, sim)
            reply = await post(gateway, kind)
            assert (reply.status_code, reply.headers["retry-after"]) == (code, "1")
            assert "limit of requests in flight" in reply.json()["error"]["message"]
            text = (await gateway.client.get("/metrics")).text
            assert 'status="error",error_type="overload"} 1\n' in text
            assert await limit_hits(gateway) == {"in_flight": 1}
            first.leave()
            await until(lambda: all_released(gateway))
            assert (await post(gateway, kind)).status_code == 200


async def test_relayed_route_says_overload_as_its_api_does() -> None:
    async with rig(max_in_flight=1, queue_seconds=20, overload_status_code=429) as gateway:
        waits = asyncio.ensure_future(post(gateway))
        await queued(gateway, 1)
        reply = await gateway.client.post(CHAT, json={})
        assert (reply.status_code, reply.json()["error"]["type"]) == (429, "rate_limit_error")
        waits.cancel()


async def test_storm_never_has_more_in_flight_than_may_be() -> None:
    async with SimServer("sglang", SimConfig(token_delay=1.0)) as sim:
        async with rig(sim.url, max_in_flight=7) as gateway:
            replies = await asyncio.gather(*(post(gateway) for _ in range(60)))
            codes = [reply.status_code for reply in replies]
            assert (codes.count(200), codes.count(503)) == (7, 53)
            assert peak(sim) == 7 and all_released(gateway)


# -- in flight at a worker


async def test_all_are_served_and_no_worker_ever_has_one_more_than_it_may() -> None:
    config = SimConfig(token_delay=1.0)
    async with SimServer("sglang", config) as one, SimServer("sglang", config) as two:
        async with rig(one.url, two.url, max_in_flight_per_worker=3) as gateway:
            replies = await asyncio.gather(*(post(gateway, stream=n % 2 == 0) for n in range(60)))
            assert {reply.status_code for reply in replies} == {200}
            assert peak(one) == peak(two) == 3
            assert len(generates(one, two)) == 60 and all_released(gateway)
            text = (await gateway.client.get("/metrics")).text
            assert "dynamo_frontend_held_requests 0\n" in text
            assert "dynamo_frontend_hold_seconds_count 54\n" in text


async def test_queue_for_capacity_is_bounded_and_who_leaves_it_gives_its_place_to_the_next() -> None:
    settings = {"max_in_flight_per_worker": 1, "overload_status_code": 429, "queue_requests": 2}
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, **settings) as gateway:
        sim.behave(Pace(prefill_base=60.0))
        runs, leaves = [await RawClient.connect(gateway.port) for _ in range(2)]
        runs.request("/generate", json.dumps(body_of("sglang")).encode())
        await arrived(1, sim)
        leaves.request("/generate", json.dumps(body_of("sglang")).encode())
        await queued(gateway, 1)
        last = asyncio.ensure_future(post(gateway))
        await queued(gateway, 2)
        reply = await post(gateway)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
        assert "too many requests wait" in reply.json()["error"]["message"]
        leaves.leave()
        await queued(gateway, 1)
        runs.leave()
        assert (await last).status_code == 200
        assert len(generates(sim)) == 2 and all_released(gateway)


# -- what workers send


@pytest.mark.parametrize(
    ("lines", "settings"),
    [
        (b"".join(b"x-%d: y\r\n" % number for number in range(30)), {"header_limit_lines": 20}),
        (b"x: " + b"y" * 5000 + b"\r\n", {"header_limit_kb": 4}),
    ],
    ids=["lines", "bytes"],
)
async def test_head_of_a_reply_over_its_limit_is_a_502(lines: bytes, settings: dict[str, int]) -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, **settings) as gateway:
        sim.behave(Raw(data=b"HTTP/1.1 200 OK\r\n" + lines + b"content-length: 2\r\n\r\n{}"))
        assert (await post(gateway)).status_code == 502
        assert await limit_hits(gateway) == {"reply_head": 1}


@pytest.mark.parametrize("path", ["own", CHAT])
@pytest.mark.parametrize("kind", KINDS)
async def test_event_over_the_limit_ends_the_stream_with_a_failure_and_an_abort(kind: str, path: str) -> None:
    """The events before it are complete; the gateway does not buffer the one that never ends."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, event_limit_mb=1) as gateway:
        where = KINDS[kind] if path == "own" else path
        data = head + b': first\n\ndata: {"x":"' + b"a" * 1_100_000
        sim.behave(Raw(data=data, close=False), path=where)
        reply = await gateway.client.post(where, json=body_of(kind, 3, True), headers=JSON)
        assert reply.content.startswith(b": first\n\n") and reply.content.endswith(b"data: [DONE]\n\n")
        [error] = sse(reply.content.removeprefix(b": first\n\n"))
        assert "over the size limit" in error["error"]["message"]
        if path == "own":
            await sim.abort_called(1)
        assert all_released(gateway) and await limit_hits(gateway) == {"event": 1}
