"""Requests queued for a worker, in a complete gateway. (The queue itself: tests/fleet/test_queue.py)"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import httpx
import pytest

from gateway.sim import Reply, SimConfig, SimServer
from tests.support.gateway import RawClient, Rig, arrived, eventually, generates, queued, rig

BODY = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}


def post(gateway: Rig, **members: Any) -> Coroutine[Any, Any, httpx.Response]:
    return gateway.client.post("/generate", json={**BODY, **members})


async def shows(gateway: Rig, *lines: str) -> bool:
    """Return True if the metrics have these lines, whose names are given without the prefix."""
    text = (await gateway.client.get("/metrics")).text
    return all(f"\ndynamo_frontend_{line}\n" in text for line in lines)


async def test_request_waits_for_the_first_worker() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(queue_seconds=20) as gateway:
        waiting = asyncio.ensure_future(post(gateway))
        await queued(gateway, 1)
        await gateway.client.post("/workers", json={"url": sim.url})
        assert ((await waiting).status_code, len(generates(sim))) == (200, 1)
        assert await shows(gateway, "held_requests 0", "hold_seconds_count 1")


@pytest.mark.parametrize(
    ("settings", "waiting", "line"),
    [
        ({}, 0, "hold_seconds_count 0"),
        ({"queue_seconds": 0.1}, 0, 'holds_refused_total{reason="timeout"} 1'),
        ({"queue_seconds": 20, "queue_requests": 1}, 1, 'holds_refused_total{reason="full"} 1'),
        ({"queue_seconds": 20, "queue_bytes": 100}, 1, 'holds_refused_total{reason="full"} 1'),
    ],
    ids=["no-queue", "too-long", "number", "bytes"],
)
async def test_request_that_cannot_wait_is_a_503_with_retry_after(
    settings: dict[str, Any], waiting: int, line: str
) -> None:
    async with rig(**settings) as gateway:
        others = [asyncio.ensure_future(post(gateway)) for _ in range(waiting)]
        await queued(gateway, waiting)
        reply = await post(gateway)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert await shows(gateway, line)
        for other in others:
            other.cancel()


@pytest.mark.parametrize("end", ["leaves", "aborted", "too-long", "refused"])
@pytest.mark.parametrize("named", [True, False])
async def test_request_that_leaves_the_queue_counts_under_the_model_of_its_line(
    end: str, named: bool
) -> None:
    settings: dict[str, Any] = {"queue_bytes": 1} if end == "refused" else {}
    async with (
        SimServer("sglang", SimConfig(model="m")) as sim,
        rig(sim.url, max_in_flight_per_worker=1, **settings) as gateway,
    ):
        sim.behave(Reply(delay=1000))
        members = {"model": "m"} if named else {}
        running = asyncio.ensure_future(post(gateway, rid="first", **members))
        await arrived(1, sim)
        client = await RawClient.connect(gateway.port)
        timeout = (("x-request-timeout", "0.2"),) if end == "too-long" else ()
        client.request("/generate", json.dumps({**BODY, "rid": "r", **members}).encode(), headers=timeout)
        if end in ("leaves", "aborted"):
            await queued(gateway, 1)
        if end == "leaves":
            client.leave()
        elif end == "aborted":
            await gateway.client.post("/abort_request", json={"rid": "r"})
        error_type = {"too-long": "response_timeout", "refused": "overload"}.get(end, "cancelled")
        labels = (
            f'model="m",endpoint="generate",request_type="unary",status="error",error_type="{error_type}"'
        )
        await eventually(lambda: shows(gateway, f"requests_total{{{labels}}} 1"))
        assert "unknown_model" not in (await gateway.client.get("/metrics")).text
        client.leave()
        running.cancel()


@pytest.mark.parametrize("model", ["m", "n", None, "of-nobody"])
async def test_request_that_waits_for_one_of_several_models_counts_under_that(model: str | None) -> None:
    """A name that only a client used never becomes a label: such a request is refused."""
    async with (
        SimServer("sglang", SimConfig(model="m")) as one,
        SimServer("sglang", SimConfig(model="n")) as two,
        rig(one.url, two.url, queue_seconds=0.2) as gateway,
    ):
        await gateway.client.post("/pause_generation", json={})
        assert (await post(gateway, model=model)).status_code == {None: 400, "of-nobody": 404}.get(model, 503)
        label = model if model in ("m", "n") else "unknown_model"
        text = (await gateway.client.get("/metrics")).text
        assert f'requests_total{{model="{label}",' in text and '"of-nobody"' not in text


async def test_request_still_queued_when_the_grace_time_is_over_is_refused() -> None:
    async with rig(queue_seconds=20) as gateway:
        waiting = asyncio.ensure_future(post(gateway))
        await queued(gateway, 1)
        gateway.app.lifecycle.drain()
        await gateway.app.lifecycle.cut()
        reply = await waiting
        assert (reply.status_code, "shutting down" in reply.text) == (503, True)
        assert reply.headers["connection"] == "close"


async def test_paused_fleet_holds_its_requests_until_it_is_resumed() -> None:
    """What an update of weights looks like to clients that do not retry."""
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url, queue_seconds=20) as gateway:
        await gateway.client.post("/pause_generation", json={})
        waiting = asyncio.ensure_future(post(gateway))
        await queued(gateway, 1)
        await gateway.client.post("/continue_generation", json={})
        assert (await waiting).status_code == 200
